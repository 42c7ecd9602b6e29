"""Writers of the texts of many prompts: on this machine, and in an actor of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs

from draftwood import Constraint, QueuedText, RowQueue, SharedDecoder, SpeculativeDecoder
from draftwood.apps.files.text import decode
from draftwood.apps.generate import batch_answers
from draftwood.apps.generate.batch_answers import Written
from draftwood.apps.models.asked import Chat, Prompt, PromptLine, Record, Row
from draftwood.apps.models.by_name import Loaded
from draftwood.apps.models.method import Method
from draftwood.apps.models.prompt_limits import PromptLimit
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.errors import DraftwoodError, InvalidInput, OutOfMemory
from draftwood.base.machine_faults import machine_fault
from draftwood.decoding.shared_decoder import SharedText
from draftwood.decoding.text_request import TextRequest

_COUNTS = ("new_tokens", "rounds", "drafted", "accepted")
_SAMPLE = 2000  # characters


@attrs.frozen(eq=False)
class TextWriter:
    """A decoder with what it takes to make lines of texts."""

    method: Method
    loaded: Loaded
    decoder: SpeculativeDecoder
    constraint: Constraint | None
    limit: PromptLimit

    @classmethod
    def of(cls, method: Method, sample: PromptLine) -> TextWriter:
        """With the models of `method`; what a draft of other tokens costs is said of the text of `sample`."""
        loaded = method.loaded()
        decoder = method.decoder(loaded, loaded.tokenizer(sample.shown[:_SAMPLE])["input_ids"])
        return cls(method, loaded, decoder, method.constraint(loaded), PromptLimit.of(loaded))

    def queue(self, rows: int) -> RowQueue:
        return RowQueue(partial(self.method.session, self.decoder, self.loaded), rows)

    def write(self, missing: Sequence[PromptLine], rows: int) -> Iterator[Record]:
        """The lines of texts for all that is `missing`, in the order in which they end.

        A text for which memory did not suffice is tried once more after all others. It is refused where
        memory suffices for a tiny text.

        Raises:
            OutOfMemory: it does not, and these texts have no line.
        """
        waiting, running = iter(missing), dict[QueuedText, _Open]()
        too_large = list[PromptLine]()
        with self.queue(rows) as queue:
            while True:
                while queue.unfinished < 2 * rows and (line := next(waiting, None)) is not None:
                    try:
                        texts = [Written(row, queue.append(self._request(row))) for row in line.rows]
                    except DraftwoodError as error:
                        yield refusal(line, str(error))
                    else:
                        running |= dict.fromkeys((one.text for one in texts), _Open(line, texts))
                if not queue.unfinished:
                    break
                for text in queue.run():
                    if text.finished and (ended := running.pop(text)).is_over:
                        if ended.lacked_memory is None:
                            yield self._record(ended.line, ended.texts)
                        else:
                            too_large.append(ended.line)
            for line in too_large:
                texts = [Written(row, queue.append(self._request(row))) for row in line.rows]
                _run(queue)
                if (lacking := _Open(line, texts).lacked_memory) is not None:
                    probe = queue.append(_tiny(lacking))
                    _run(queue)
                    _check_written(probe)
                yield self._record(line, texts)

    def write_shared(self, shared: SharedDecoder, line: PromptLine) -> Record:
        """The line of texts for `line`, by a decoder that other threads use too; errors as of `write`."""
        for again in (False, True):
            try:
                begun = [(row, _begun(shared, self._request(row))) for row in line.rows]
            except InvalidInput as error:
                return refusal(line, str(error))
            texts = [Written(row, text.wait()) for row, text in begun]
            if (lacking := _Open(line, texts).lacked_memory) is None:
                break
            if again:
                _check_written(_begun(shared, _tiny(lacking)).wait())
        return self._record(line, texts)

    def _request(self, row: Row) -> TextRequest:
        """The request of a text.

        Raises:
            InvalidInput: it cannot be written.
        """
        own, usual = row.settings, self.method
        sampling, draft = own.sampling(usual.sampling), None
        if sampling is not None and usual.draft_sampling is not None:
            draft = attrs.evolve(sampling, temperature=usual.draft_sampling.temperature)
        return TextRequest(
            self._tokens(row.prompt),
            row.seed,
            max_new_tokens=own.max_new_tokens,
            sampling=sampling,
            draft_sampling=draft,
            stop_strings=list(own.stop) or None,
            logprobs=own.logprobs,
            constraint=self.constraint,
        )

    def _tokens(self, prompt: Prompt) -> list[int]:
        tokens = list(prompt) if isinstance(prompt, tuple) else self._encoded(prompt)
        most = self.loaded.target.vocab_size
        if (odd := max(tokens, default=0)) >= most:
            raise InvalidInput(
                f"The prompt has the token {odd}, and the target's are below {most}; encode it with the "
                "target's tokenizer."
            )
        self.limit.check_tokens(tokens)
        return tokens

    def _encoded(self, prompt: str | Chat) -> list[int]:
        text = prompt if isinstance(prompt, str) else "".join(one["content"] for one in prompt.messages)
        self.limit.check_text(text)
        tokenizer: Any = self.loaded.tokenizer
        try:
            if isinstance(prompt, Chat) and tokenizer.chat_template:
                messages = [dict(one) for one in prompt.messages]
                shaped = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
            else:
                shaped = tokenizer(prompt if isinstance(prompt, str) else _turns(prompt))
        except Exception as error:  # a template is a program, and may fail in any way
            if machine_fault(error) is not None:
                raise
            raise InvalidInput(
                f"The tokenizer cannot read the prompt ({type(error).__name__}: {first_line(error)[:120]}); "
                "change the prompt."
            ) from error
        ids: list[int] = shaped["input_ids"]
        return ids

    def _record(self, line: PromptLine, texts: Sequence[Written]) -> Record:
        """The line of texts that have ended."""
        if ill := next((one.text for one in texts if one.text.refused is not None), None):
            return refusal(line, ill.refused or "", status=_status(ill))
        statistics = _together([one.text.statistics for one in texts])
        if line.request is not None:
            answer = batch_answers.answer(line, texts, self.loaded.tokenizer, stops=self.method.words.stop)
            return {"number": line.number, "answer": answer, "statistics": statistics}
        ((row, text),) = [(one.row, one.text) for one in texts]
        return {
            "number": line.number,
            "prompt": line.shown,
            **line.kept,
            "text": decode(self.loaded.tokenizer, text.tokens),
            "tokens": text.tokens,
            "finish_reason": text.finished,
            "prompt_tokens": len(text.prompt),
            "seed": row.seed,
            "lossless": self.method.strategy.verifier.lossless,
            "statistics": statistics,
        }


@attrs.frozen(eq=False)
class _Open:
    """A line whose texts are being written."""

    line: PromptLine
    texts: list[Written]

    @property
    def is_over(self) -> bool:
        return all(one.text.finished for one in self.texts)

    @property
    def lacked_memory(self) -> QueuedText | None:
        """A text that was refused since memory ran out."""
        refused = (one.text for one in self.texts if one.text.error is not None)
        return next((text for text in refused if _kind(text.error) == "memory"), None)


def _kind(error: BaseException | None) -> str | None:
    fault = None if error is None else machine_fault(error)
    return None if fault is None else fault.kind


def _tiny(text: QueuedText) -> TextRequest:
    """A text of a few tokens, which shows whether the machine has memory for any."""
    return TextRequest(text.prompt[:2], seed=0, max_new_tokens=3)


def _run(queue: RowQueue) -> None:
    while queue.unfinished:
        queue.run()


def _check_written(probe: QueuedText) -> None:
    if probe.refused is not None:
        raise OutOfMemory(
            f"There is no memory even for three tokens ({probe.refused.rstrip('.')}); make room and repeat "
            "the command, which continues from here."
        )


def refusal(line: PromptLine, reason: str, *, status: int = 400) -> Record:
    """The line of texts for what cannot be written.

    Args:
        line: what was asked.
        reason: a sentence.
        status: of HTTP, for a request's answer: 400, or 500 where the machine is at fault.
    """
    begun: Record = {"number": line.number}
    if line.request is not None:
        return {**begun, "answer": batch_answers.refusal(line, reason, status=status), "refused": reason}
    return {**begun, "prompt": line.shown, **line.kept, "refused": reason}


def _begun(shared: SharedDecoder, asked: TextRequest) -> SharedText:
    return shared.add(
        asked.prompt,
        seed=asked.seed,
        max_new_tokens=asked.max_new_tokens,
        sampling=asked.sampling,
        draft_sampling=asked.draft_sampling,
        stop_strings=asked.stop_strings,
        logprobs=asked.logprobs,
        constraint=asked.constraint,
    )


def _status(text: QueuedText) -> int:
    """Returns the HTTP status: the request is at fault if the error is one of ours, unless the machine is."""
    return 400 if isinstance(text.error, DraftwoodError) and _kind(text.error) is None else 500


def _turns(chat: Chat) -> str:
    """A conversation for a model without a template."""
    turns = [f"{one['role'].capitalize()}: {one['content']}" for one in chat.messages]
    return "\n".join([*turns, "Assistant:"])


def _together(of_texts: Sequence[dict[str, float]]) -> dict[str, float]:
    if len(of_texts) == 1:
        return of_texts[0]
    return {name: sum(one[name] for one in of_texts) for name in _COUNTS}
