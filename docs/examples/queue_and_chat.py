"""A queue of prompts that a few rows serve, and a chat that goes on without reading itself again."""

from draftwood import SpeculativeDecoder, load, zoo
from draftwood.drafters import ModelDrafter
from draftwood.policies import LayeredDySpec
from draftwood.verifiers import RecursiveRejection

decoder = SpeculativeDecoder(
    load(zoo.load("llama-7m")),
    ModelDrafter(load(zoo.load("llama-draft"))),
    LayeredDySpec(budget=16),
    RecursiveRejection(),
)
tokenizer = zoo.tokenizer()
queue = [tokenizer(f"Question: What is {n} plus {n}?\nAnswer:")["input_ids"] for n in range(6)]
turns = ["Once upon a time", "\nThe next day"]

with decoder.session(max_rows=3, max_new_tokens=16, seed=1) as session:
    chat = session.add(tokenizer(turns[0])["input_ids"], kept=True)  # takes a row until it is released
    rows = [session.add(prompt) for prompt in queue]  # the others share two
    while session.unfinished:
        for record in session.run().rows:
            if record.finished and record.row == chat and turns:
                first, *turns = turns
                if turns:
                    session.extend(chat, tokenizer(turns[0])["input_ids"])
            elif record.finished:
                print(f"Row {record.row} has ended ({record.finished}).")
    print(f"--- The chat, {len(session.text(chat))} tokens:\n{tokenizer.decode(session.text(chat))}")
    texts = [session.text(row) for row in rows]

alone = decoder.generate(queue[2:3], max_new_tokens=16)
assert alone[0].tolist() == texts[2]
print("--- A row of the queue by itself writes the same text.")
