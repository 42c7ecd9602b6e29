"""`draftwood generate` with images, sound, and models that have an encoder."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from draftwood import zoo
from draftwood.apps.generate import media
from tests.backends.attention_models import SMALL, randomised
from tests.framework.test_text_alone import EYE, qwen2_5_vl

WRITE = ("--drafter", "prompt-lookup", "--max-new-tokens", 6, "--json")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = zoo.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"], "pad_token": "<pad>"})
    tokenizer.padding_side = "left"
    return tokenizer


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: Any, tokenizer: Any) -> Any:
    """A folder with a tiny Llava and its processor."""
    folder = tmp_path_factory.mktemp("llava")
    torch.manual_seed(3)
    text = hf.LlamaConfig(**{**SMALL, "vocab_size": len(tokenizer), "eos_token_id": None, "pad_token_id": 0})
    place = tokenizer.convert_tokens_to_ids("<image>")
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**EYE), text_config=text, image_token_index=place
    )
    randomised(hf.LlavaForConditionalGeneration(config)).save_pretrained(folder)
    eye = hf.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    template = (
        "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}<image>{% else %}"
        "{{ c.text }}{% endif %}{% endfor %}{% endfor %} bot:"
    )
    hf.LlavaProcessor(
        eye,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def printed(draftwood: Any) -> Any:
    """Run the command line and return what it prints."""

    def run(*arguments: object) -> str:
        result = draftwood(*arguments)
        assert result.exit_code == 0, result.output
        text: str = result.stdout
        return text

    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: Any) -> list[Any]:
    from PIL import Image

    folder, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    files = [folder / f"{number}.png" for number in range(2)]
    for file in files:
        Image.fromarray(chance.integers(0, 255, (28, 28, 3), np.uint8)).save(file)
    return files


def plain(folder: Any, text: str, files: list[Any]) -> list[int]:
    from PIL import Image

    processor = hf.AutoProcessor.from_pretrained(folder)
    model = hf.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    inputs = processor(images=[Image.open(file) for file in files], text=[text], return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)
    tokens: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens


def test_texts_after_images_are_those_of_generate(printed: Any, seeing: Any, pictures: list[Any]) -> None:
    one = json.loads(
        printed("generate", "--target", seeing, "--image", pictures[0], "--prompt", "Hi", *WRITE)
    )
    assert one["tokens"] == plain(seeing, "<image>Hi", pictures[:1])
    both = [word for file in pictures for word in ("--image", file)]
    two = json.loads(printed("generate", "--target", seeing, *both, "--prompt", "Hi", *WRITE))
    assert two["tokens"] == plain(seeing, "<image><image>Hi", pictures)
    rows = printed("generate", "--target", seeing, *both, "--prompt", "Hi", "--prompt", "Dear Sir", *WRITE)
    assert [json.loads(row)["tokens"] for row in rows.splitlines()] == [
        plain(seeing, "<image>Hi", pictures[:1]),
        plain(seeing, "<image>Dear Sir", pictures[1:]),
    ]
    asked = ("--target", seeing, "--image", pictures[0], "--prompt", "Hi", "--chat")
    chat = json.loads(printed("generate", *asked, *WRITE))
    assert chat["tokens"] == plain(seeing, "<image>Hi bot:", pictures[:1])


@pytest.fixture(scope="module")
def writing(tmp_path_factory: Any, tokenizer: Any) -> Any:
    """A folder with a tiny T5."""
    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(3)
    config = hf.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0
    )
    config.decoder_start_token_id, config.eos_token_id = 3, None
    randomised(hf.T5ForConditionalGeneration(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def answered(folder: Any, tokenizer: Any, text: str) -> list[int]:
    model = hf.T5ForConditionalGeneration.from_pretrained(folder).eval()
    ids = tokenizer([text], return_tensors="pt")["input_ids"]
    tokens: list[int] = model.generate(ids, max_new_tokens=6, do_sample=False)[0, 1:].tolist()
    return tokens


def test_a_source_is_the_prompt_of_an_encoder_decoder(printed: Any, writing: Any, tokenizer: Any) -> None:
    out = json.loads(printed("generate", "--target", writing, "--prompt", "Dear Sir,", *WRITE))
    assert out["tokens"] == answered(writing, tokenizer, "Dear Sir,")


def test_what_a_target_does_not_read_is_refused(refused: Any, seeing: Any, pictures: list[Any]) -> None:
    image = ("--image", pictures[0], "--prompt", "Hi")
    assert "LlamaForCausalLM reads no image; leave --image out" in refused("generate", *image)
    sound = ("--audio", pictures[0], "--prompt", "Hi")
    assert "reads no audio; leave --audio out" in refused("generate", "--target", seeing, *sound)
    three = (*image, "--prompt", "You", "--prompt", "They")
    said = refused("generate", "--target", seeing, *three)
    assert "1 times --image was given with 3 prompts" in said
    broken = pictures[0].with_name("broken.png")
    broken.write_bytes(b"no image")
    said = refused("generate", "--target", seeing, "--image", broken, "--prompt", "Hi")
    assert "does not prepare this prompt" in said
    assert "combined with --image" in refused("generate", "--data", broken, "--image", pictures[0])


def test_places_that_a_text_names_are_kept() -> None:
    class Processor:
        image_token = "<image>"

    assert media._with_places(Processor(), "Hi", {"image": 2}) == "<image><image>Hi"
    assert media._with_places(Processor(), "See <image>: hi", {"image": 1}) == "See <image>: hi"


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: Any, tokenizer: Any) -> Any:
    """A folder with a tiny Whisper that hears half a second, and its processor."""
    folder = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(3)
    config = hf.WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=64,
    )
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 3, 2
    config.decoder_start_token_id = 3
    model = randomised(hf.WhisperForConditionalGeneration(config))
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    model.save_pretrained(folder)
    ear = hf.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    hf.WhisperProcessor(ear, tokenizer).save_pretrained(folder)
    return folder


def sound_file(file: Any, *, rate: int, pitch: int = 440) -> Any:
    """A file of half a second of a tone; returns its samples from -1 to 1."""
    samples = (9000 * np.sin(2 * np.pi * pitch / rate * np.arange(rate // 2))).astype("<i2")
    with wave.open(str(file), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(samples.tobytes())
    return samples.astype(np.float32) / 2**15


def heard(folder: Any, samples: Any) -> list[int]:
    processor = hf.AutoProcessor.from_pretrained(folder)
    model = hf.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    inputs = processor(audio=samples, sampling_rate=16000, return_tensors="pt")
    tokens: list[int] = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0].tolist()
    return tokens


def test_texts_after_sound_are_those_of_generate(printed: Any, hearing: Any, tmp_path: Any) -> None:
    files = [tmp_path / f"{number}.wav" for number in range(2)]
    pitches = zip(files, (150, 5000), strict=True)
    samples = [sound_file(file, rate=16000, pitch=pitch) for file, pitch in pitches]
    expected = [heard(hearing, one) for one in samples]
    assert expected[0] != expected[1]
    for file, tokens in zip(files, expected, strict=True):
        out = json.loads(printed("generate", "--target", hearing, "--audio", file, *WRITE))
        assert out["tokens"] == tokens[-len(out["tokens"]) :]
    slow = tmp_path / "slow.wav"
    sound_file(slow, rate=8000)  # is brought to the rate that the processor asks for
    assert json.loads(printed("generate", "--target", hearing, "--audio", slow, *WRITE))["tokens"]


def test_a_package_that_reading_needs_is_named(
    refused: Any, hearing: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    file = tmp_path / "one.wav"
    sound_file(file, rate=16000)

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("\nload_audio requires the soundfile library but it was not found.\nInstall it")

    monkeypatch.setattr("transformers.audio_utils.load_audio", missing)
    said = refused("generate", "--target", hearing, "--audio", file)
    assert "files of --audio needs packages that are not installed (load_audio requires the sound" in said
    assert "install draftwood[media]" in said


class Watching:
    """Stands for a processor of videos, whose frames need a package: it takes their files and two frames."""

    video_token = "<image>"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.asked = tokenizer, list[dict[str, Any]]()

    def __call__(self, *, text: list[str], videos: list[str], **form: Any) -> dict[str, Any]:
        self.asked.append({"text": text, "videos": videos})
        inputs: dict[str, Any] = dict(self.tokenizer(text, **form))
        place = self.tokenizer.convert_tokens_to_ids(self.video_token)
        sources = [torch.Generator().manual_seed(int(Path(file).stem)) for file in videos]
        frames = [4 * torch.randn(4, 3 * 2 * 14 * 14, generator=source) for source in sources]
        return inputs | {
            "pixel_values_videos": torch.cat(frames),
            "video_grid_thw": torch.tensor([[1, 2, 2]] * len(videos)),
            "mm_token_type_ids": 2 * (inputs["input_ids"] == place).long(),
        }


def test_videos_go_to_the_processor(
    printed: Any, refused: Any, tmp_path: Any, tokenizer: Any, seeing: Any, monkeypatch: Any
) -> None:
    torch.manual_seed(3)
    place, folder = tokenizer.convert_tokens_to_ids("<image>"), tmp_path / "qwen"
    model = randomised(qwen2_5_vl(place - 1, vocab_size=len(tokenizer), eos_token_id=None, pad_token_id=0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = Watching(tokenizer)
    monkeypatch.setattr(media, "_processor", lambda *_: processor)
    files = [tmp_path / f"{number}.mp4" for number in range(2)]
    for file in files:
        file.write_bytes(b"frames")

    def plain(text: str, *videos: Any) -> list[int]:
        inputs = processor(text=[text], videos=[str(file) for file in videos], return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)
        tokens: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    both = [word for file in files for word in ("--video", file)]
    asked: tuple[Any, ...] = ("generate", "--target", folder, "--prompt", "Hi")
    one = json.loads(printed(*asked, "--video", files[0], *WRITE))
    assert one["tokens"] == plain("<image>Hi", files[0])
    assert one["tokens"] != plain("<image>Hi", files[1])
    two = json.loads(printed(*asked[:-1], "<image> and <image>", *both, *WRITE))
    assert two["tokens"] == plain("<image> and <image>", *files)
    said = refused(*asked, *both)  # side by side they are one video for the model
    assert "does not take these inputs (shape mismatch" in said
    rows = printed(*asked, *both, "--prompt", "Dear Sir", *WRITE)
    assert [json.loads(row)["tokens"] for row in rows.splitlines()] == [
        plain("<image>Hi", files[0]),
        plain("<image>Dear Sir", files[1]),
    ]
    said = refused("generate", "--target", seeing, "--video", files[0], "--prompt", "Hi")
    assert "LlavaForConditionalGeneration reads no video; leave --video out" in said


def benched(printed: Any, to: Path, *arguments: object) -> list[dict[str, Any]]:
    """The greedy texts of a bench in which the target drafts for itself, where all drafts are accepted."""
    strategies = ("--strategy", "chain:length=3", "--strategy", "dyspec:budget=4:draft_temperature=0.001")
    temperatures = ("--temperature", 0, "--temperature", 1)
    sizes = ("--prompts", 2, "--new-tokens", 6)
    printed("bench", *strategies, *sizes, *temperatures, "--to", to, *arguments)
    cells = [json.loads(line) for line in (to / "cells.jsonl").read_text("utf-8").splitlines()[1:]]
    for one in cells:
        if one["kind"] == "pair" and one["temperature"] == 1:
            assert sum(one["accepted"]) > 0.999 * sum(one["drawn"]) > 4.9
        if one["kind"] == "text" and one["contender"].startswith("chain") and one["temperature"] == 1:
            assert one["accepted"] == one["drafted"] > 0
    return [one for one in cells if one["kind"] == "text" and one["temperature"] == 0]


def rows_of(file: Any, rows: list[dict[str, Any]]) -> Any:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def test_bench_reads_images(
    printed: Any, refused: Any, seeing: Any, pictures: list[Any], tmp_path: Any
) -> None:
    rows = [{"prompt": text, "image": str(file)} for text, file in zip(("Hi", "You"), pictures, strict=True)]
    data, pair = rows_of(tmp_path / "seen.jsonl", rows), f"{seeing},{seeing}"
    texts = benched(printed, tmp_path / "to", "--pair", pair, "--data", data)
    assert len(texts) == 6
    for one in texts:
        row = rows[one["prompt"]]
        assert one["tokens"] == plain(seeing, f"<image>{row['prompt']}", [row["image"]])
    rows_of(data, [{**row, "image": str(file)} for row, file in zip(rows, pictures[::-1], strict=True)])
    other = benched(printed, tmp_path / "other", "--pair", pair, "--data", data, "--rows", 2)
    swapped = [plain(seeing, f"<image>{row['prompt']}", [row["image"]]) for row in rows]
    assert all(one["tokens"] != [*swapped[0], *swapped[1]] for one in other)
    assert len({tuple(one["tokens"]) for one in other}) == 1
    to = ("--to", tmp_path / "refused")
    said = refused("bench", "--pair", pair, "--data", data, "--prompts", 2, "--prompt-length", 4, *to)
    assert "which are not cut; leave --prompt-length out" in said
    missing = rows_of(tmp_path / "none.jsonl", [{"prompt": "Hi", "image": "none.png"}])
    assert "which is no file; correct it" in refused("bench", "--data", missing, "--prompts", 1, *to)
    assert "only read next to" in refused("generate", "--data", missing, "--out", tmp_path / "out.jsonl")


def test_bench_knows_an_image_by_its_content(
    printed: Any, refused: Any, seeing: Any, pictures: list[Any], tmp_path: Any
) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(pictures[0].read_bytes())
    data = rows_of(tmp_path / "seen.jsonl", [{"prompt": "Hi", "image": "image.png"}])
    command = ("bench", "--pair", f"{seeing},{seeing}", "--data", data, "--prompts", 1, "--new-tokens", 2)
    command += ("--strategy", "chain:length=2", "--to", tmp_path / "to")
    printed(*command)
    image.write_bytes(pictures[1].read_bytes())
    assert "data" in refused(*command)


def test_bench_reads_sources_and_sound(printed: Any, hearing: Any, tmp_path: Any, tokenizer: Any) -> None:
    files = [tmp_path / f"{number}.wav" for number in range(2)]
    for file, pitch in zip(files, (150, 5000), strict=True):
        sound_file(file, rate=16000, pitch=pitch)
    data = rows_of(tmp_path / "heard.jsonl", [{"prompt": "", "audio": file.name} for file in files])
    texts = benched(printed, tmp_path / "to", "--pair", f"{hearing},{hearing}", "--data", data)
    for number in range(2):
        written = {tuple(one["tokens"]) for one in texts if one["prompt"] == number}
        assert len(written) == 1
        assert len(written.pop()) == 6
    assert len({tuple(one["tokens"]) for one in texts}) == 2


def test_bench_gives_texts_to_encoders(
    printed: Any, refused: Any, writing: Any, tmp_path: Any, tokenizer: Any
) -> None:
    rows = [{"prompt": "Dear Sir,"}, {"prompt": "Once"}]
    data, pair = rows_of(tmp_path / "texts.jsonl", rows), f"{writing},{writing}"
    for one in benched(printed, tmp_path / "to", "--pair", pair, "--data", data):
        assert one["tokens"] == answered(writing, tokenizer, rows[one["prompt"]]["prompt"])
    arrivals = ("--arrivals", "poisson:2.0", "--to", tmp_path / "refused")
    said = refused("bench", "--pair", pair, "--data", data, "--prompts", 2, *arrivals)
    assert "which are written in calls; leave --arrivals out" in said
    turns = rows_of(tmp_path / "turns.jsonl", [{"turns": ["Hi", "You"]}])
    said = refused("bench", "--pair", pair, "--data", turns, "--prompts", 1, *arrivals[2:])
    assert "conversations of several turns; give --turns 1" in said
