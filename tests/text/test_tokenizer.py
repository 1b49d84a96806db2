"""Tokenizers rebuilt from GGUF metadata equal those that the metadata was taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.text import corpus, sources
from torch_foundry.io import LoadError, open_gguf
from torch_foundry.text import tokenizer_from_gguf
from torch_foundry.text.pretokenizers import PRE, pre_tokenizer

ROOT = Path(__file__).parents[2]


def build(metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    return tokenizer_from_gguf(metadata, "model.gguf", len(metadata["tokenizer.ggml.tokens"]))


def assert_same(source: Any, rebuilt: PreTrainedTokenizerFast, texts: list[str] = corpus.TEXTS) -> None:
    """Ids, offsets and both ways of decoding, against a `tokenizers.Tokenizer`."""
    assert len(rebuilt) == source.get_vocab_size()
    for text in texts:
        want = source.encode(text, add_special_tokens=False)
        found = rebuilt(text, add_special_tokens=False, return_offsets_mapping=True)
        assert (found["input_ids"], found["offset_mapping"]) == (want.ids, want.offsets), text
        for skip in (False, True):
            assert rebuilt.decode(want.ids, skip_special_tokens=skip) == source.decode(
                want.ids, skip_special_tokens=skip
            )


# Tokenizers as their models' own files build them, written down once more, apart from the table.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OWN: dict[str, list[Any]] = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "refact": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "tekken": [TEKKEN],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "falcon": [
        r"[\p{P}\$\+<=>\^~\|`]+",
        ("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
        "[0-9][0-9][0-9]",
    ],
}


@pytest.mark.parametrize("pre", OWN)
def test_byte_level_tokenizers_split_as_their_models_do(pre: str) -> None:
    steps = [s if isinstance(s, pre_tokenizers.PreTokenizer) else sources.split(s) for s in OWN[pre]]
    if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    normalizer = normalizers.NFC() if pre == "qwen2" else None
    whole = pre in ("llama-bpe", "tekken")
    source = sources.byte_level(pre_tokenizers.Sequence(steps), normalizer, whole=whole)
    assert_same(source, build(sources.byte_level_metadata(source, pre)))


@pytest.mark.parametrize("pre", sorted(set(PRE) - set(OWN)))
def test_every_known_way_to_split_builds_and_decodes_back(pre: str) -> None:
    rule = PRE[pre]
    source = sources.byte_level(pre_tokenizer(rule), size=700, whole=rule.whole)
    tokenizer = build(sources.byte_level_metadata(source, pre))
    for text in corpus.TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == (normalizers.NFC().normalize_str(text) if rule.nfc else text)


def test_patterns_are_those_that_transformers_knows() -> None:
    module = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    mapping = getattr(module, "GGUF_PRE_TOKENIZER_SPLITS", None)
    if mapping is None:
        pytest.skip("this transformers has no table of ways to split")
    assert {name: PRE[name].splits for name in mapping} == {name: (pattern,) for name, pattern in mapping.items()}


def test_tokens_that_merges_do_not_reach_stay_whole_where_the_model_says_so() -> None:
    """Llama 3 looks a piece up before it merges: here " again" is a token that no merge makes."""
    source = sources.byte_level(pre_tokenizer(PRE["llama-bpe"]))
    for pre, whole in (("llama-bpe", True), ("dbrx", False)):
        metadata = sources.byte_level_metadata(source, pre)
        metadata["tokenizer.ggml.tokens"].append("Ġagain")
        metadata["tokenizer.ggml.token_type"].append(sources.NORMAL)
        ids = build(metadata)("once again", add_special_tokens=False)["input_ids"]
        assert (ids[-1] == len(metadata["tokenizer.ggml.tokens"]) - 1) == whole


def test_no_token_is_added_past_the_vocabulary() -> None:
    """Transformers' own reader adds <|endoftext|> to byte-level vocabularies that lack it."""
    tokenizer = build(sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["gpt-2"])), "gpt-2"))
    ids = tokenizer("a<|endoftext|>b <unk> <pad> </s>")["input_ids"]
    assert max(ids) < len(tokenizer) and "<|endoftext|>" not in tokenizer.get_vocab()


def test_an_id_that_names_a_word_makes_it_no_special_token() -> None:
    source = sources.byte_level(pre_tokenizer(PRE["gpt-2"]))
    words = {
        f"tokenizer.ggml.{name}_token_id": source.token_to_id(token) for name, token in (("padding", "e"), ("bos", "t"))
    }
    tokenizer = build(sources.byte_level_metadata(source, "gpt-2") | words | {"tokenizer.ggml.add_bos_token": True})
    assert_same(source, tokenizer)
    assert tokenizer.pad_token is None and tokenizer("end")["input_ids"] == source.encode("end").ids


def test_the_length_that_a_model_was_trained_on() -> None:
    metadata = sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["gpt-2"])), "gpt-2")
    assert build(metadata | {"general.architecture": "qwen2", "qwen2.context_length": 4096}).model_max_length == 4096


def test_pieces_without_scores_of_their_own_merge_in_their_order() -> None:
    source = sources.sentence_piece("bpe")
    metadata = sources.sentence_piece_metadata(source, "llama")
    n = len(metadata["tokenizer.ggml.tokens"])
    tokenizer = build(metadata | {"tokenizer.ggml.scores": [-1000.0] * n})
    for text in corpus.TEXTS:
        if text not in DIFFERENT:
            assert tokenizer(text)["input_ids"] == source.encode(text)


SENTENCE_PIECE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("bpe", "llama", {}),
    "llama without prefix": ("bpe", "llama", {"add_dummy_prefix": False}),
    "gemma": (
        "bpe",
        "llama",
        {"add_dummy_prefix": False, "user_defined_symbols": "<|im_start|>,<|im_end|>,▁▁,▁▁▁,▁▁▁▁"},
    ),
    "llama nfkc": ("bpe", "llama", {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}),
    "llama unknown": ("bpe", "llama", {"byte_fallback": False, "remove_extra_whitespaces": True}),
    "unigram": ("unigram", "t5", {}),
    "t5": ("unigram", "t5", {"byte_fallback": False, "remove_extra_whitespaces": True}),
    "t5 nfkc": ("unigram", "t5", {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}),
}
# SentencePiece takes no control token from a text, and the library that applies a compiled normalisation takes
# combining marks one by one: these texts differ by design.
DIFFERENT = [t for t in corpus.TEXTS if any(token in t for token in ("<s>", "<unk>"))]
COMBINING = [t for t in corpus.RARE if t.startswith("e\u0301")]


@pytest.mark.parametrize("name", SENTENCE_PIECE)
def test_sentence_piece_tokenizers(name: str) -> None:
    kind, model, options = SENTENCE_PIECE[name]
    source = sources.sentence_piece(kind, **options)
    metadata = sources.sentence_piece_metadata(source, model)
    tokenizer = build(metadata)
    scores = metadata["tokenizer.ggml.scores"]
    for text in corpus.TEXTS:
        if text in DIFFERENT or ("nfkc" in name and text in COMBINING):
            continue
        want, found = source.encode(text), tokenizer(text)["input_ids"]
        if kind == "unigram" and want != found:  # two ways of one score: either is right
            assert sum(scores[i] for i in want) == pytest.approx(sum(scores[i] for i in found), rel=1e-6), text
        else:
            assert want == found, text
        if source.unk_id() not in want:
            assert tokenizer.decode(found) == source.decode(want)


def test_gemma_4_lists_merges_and_spells_runs_of_spaces_as_they_are() -> None:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    texts = corpus.LANGUAGES + corpus.CODE * 2 + corpus.SPACES * 5
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    merges = json.loads(trained.to_str())["model"]["merges"]
    tokens = ["<unk>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained.get_vocab()]
    ids = {token: i for i, token in enumerate(tokens)}
    bpe = models.BPE(ids, [tuple(m) for m in merges], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    source = Tokenizer(bpe)
    source.normalizer = normalizers.Replace(" ", "▁")
    source.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    source.add_special_tokens(["<unk>", "<bos>"])
    runs = [token for token in tokens if len(token) > 1 and not token.strip("▁")]
    keys = {
        "model": "gemma4",
        "tokens": [" " * len(token) if token in runs else token for token in tokens],
        "token_type": [sources.UNKNOWN, sources.CONTROL]
        + [sources.BYTE] * 256
        + [sources.USER_DEFINED if token in runs else sources.NORMAL for token in tokens[258:]],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": 1,
        "add_bos_token": True,
    }
    assert runs
    tokenizer = build({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    assert_same(source, tokenizer)
    keys["tokens"][-1] = runs[0]  # spelled both ways: one token would be lost
    with pytest.raises(LoadError, match="VOCAB_SIZE"):
        build({f"tokenizer.ggml.{key}": value for key, value in (keys | {"merges": []}).items()})
    assert tokenizer.bos_token_id not in tokenizer("a  b")["input_ids"]  # the template writes it


def test_control_tokens_in_a_text() -> None:
    tokenizer = build(sources.sentence_piece_metadata(sources.sentence_piece("bpe"), "llama"))
    tokens = tokenizer.tokenize("<s>a</s> b")
    assert tokens[:2] == ["<s>", "▁a"] and "</s>" in tokens
    assert tokenizer.decode(tokenizer("<s>a</s>")["input_ids"], skip_special_tokens=True).strip() == "a"


def test_begin_and_end_as_the_file_says_else_as_the_model_does() -> None:
    piece = sources.sentence_piece_metadata(sources.sentence_piece("bpe"), "llama")
    unigram = sources.sentence_piece_metadata(sources.sentence_piece("unigram"), "t5")
    level = sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["llama-bpe"])), "llama-bpe")
    for metadata, habit in ((piece, (True, False)), (unigram, (False, True)), (level, (True, False))):
        for bos in (None, False, True):
            for eos in (None, False, True):
                said = {"tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos}
                tokenizer = build({k: v for k, v in (metadata | said).items() if v is not None})
                ids = tokenizer("word")["input_ids"]
                assert (ids[0] == tokenizer.bos_token_id) == (habit[0] if bos is None else bos)
                assert (ids[-1] == tokenizer.eos_token_id) == (habit[1] if eos is None else eos)


def test_the_demo_model_s_tokenizer_survives_the_way_there_and_back(tmp_path: Path) -> None:
    source = AutoTokenizer.from_pretrained(ROOT / "torch_foundry" / "demo_model" / "main")
    metadata = sources.byte_level_metadata(source.backend_tokenizer, "smollm")
    metadata |= {"tokenizer.ggml.bos_token_id": source.bos_token_id, "tokenizer.ggml.eos_token_id": source.eos_token_id}
    metadata |= {"tokenizer.ggml.padding_token_id": source.pad_token_id, "tokenizer.ggml.add_bos_token": True}
    metadata["tokenizer.chat_template"] = source.chat_template
    rebuilt = build(metadata)
    rebuilt.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once."}]
    for tokenizer in (rebuilt, AutoTokenizer.from_pretrained(tmp_path)):
        assert_same(source.backend_tokenizer, tokenizer)
        assert tokenizer("Hello")["input_ids"] == source("Hello")["input_ids"]
        assert tokenizer.apply_chat_template(messages)["input_ids"] == source.apply_chat_template(messages)["input_ids"]
        assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
            source.bos_token,
            source.eos_token,
            source.pad_token,
        )


def test_metadata_as_our_reader_has_it(tmp_path: Path) -> None:
    """Through a file that the gguf package writes: arrays stay in it until they are asked for."""
    source = sources.sentence_piece("unigram", normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)
    metadata = sources.sentence_piece_metadata(source, "t5")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "t5")
    kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
    for key, value in metadata.items():
        if key.endswith("charsmap"):
            writer.add_key_value(key, bytes(value), gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8)
        else:
            kinds[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "model.gguf") as container:
        tokenizer = tokenizer_from_gguf(container.metadata, container.path)
    rebuilt = build(metadata)
    for text in corpus.TEXTS:
        assert tokenizer(text)["input_ids"] == rebuilt(text)["input_ids"]


def test_templates_by_name() -> None:
    metadata = sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["gpt-2"])), "gpt-2")
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    assert build(metadata).chat_template == "{{ messages[0].content }}"
    metadata["tokenizer.chat_template.tool_use"] = "tools: {{ messages[0].content }}"
    metadata["tokenizer.chat_templates"] = ["tool_use"]
    assert sorted(build(metadata).chat_template) == ["default", "tool_use"]
    metadata["tokenizer.chat_template"] = 7
    with pytest.raises(LoadError, match=r"tokenizer.chat_template.*VOCAB_TYPE"):
        build(metadata)


def test_blanks_of_t5_are_what_pads_its_vocabulary() -> None:
    metadata = sources.sentence_piece_metadata(sources.sentence_piece("unigram"), "t5")
    n = len(metadata["tokenizer.ggml.tokens"])
    for i in range(128):
        metadata["tokenizer.ggml.tokens"].append(f"[PAD{n + i}]")
        metadata["tokenizer.ggml.token_type"].append(sources.UNUSED)
        metadata["tokenizer.ggml.scores"].append(-1000.0)
    tokenizer = build(metadata | {"general.architecture": "t5"})
    assert tokenizer("a <extra_id_0> b <extra_id_99>")["input_ids"].count(n + 99) == 1
    assert tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>", f"[PAD{n + 100}]"]) == [n + 99, n, n + 100]


def test_an_unknown_way_to_split_is_an_error_that_lists_the_known() -> None:
    metadata = sources.byte_level_metadata(sources.byte_level(pre_tokenizer(PRE["gpt-2"])), "of-tomorrow")
    with pytest.raises(LoadError, match=r"llama-bpe.*of-tomorrow.*TOKENIZER"):
        build(metadata)
    del metadata["tokenizer.ggml.pre"]
    with pytest.warns(UserWarning, match="tokenizer.ggml.pre is absent"):
        build(metadata)


def test_a_vocabulary_of_a_quarter_of_a_million_tokens() -> None:
    """Lengths and counts of Gemma's; that it ends at all is the test, quadratic ways don't."""
    letters = [chr(ord("a") + i) for i in range(26)]
    tokens = ["<unk>", "<s>", "</s>", *letters]
    tokens += [a + b for a in letters for b in letters] + [a + b + c for a in letters for b in letters for c in letters]
    words = (a + b for a in tokens[705:] for b in tokens[29:705])
    tokens += [word for word, _ in zip(words, range(262144 - len(tokens)), strict=False)]
    types = [sources.UNKNOWN, sources.CONTROL, sources.CONTROL] + [sources.NORMAL] * (len(tokens) - 3)
    keys = {"model": "llama", "tokens": tokens, "token_type": types, "scores": [-float(i) for i in range(len(tokens))]}
    tokenizer = build({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    assert len(tokenizer) == 262144
    assert (
        tokenizer.tokenize("zzz")
        and tokenizer.decode(tokenizer("zebra")["input_ids"], skip_special_tokens=True) == "zebra"
    )
