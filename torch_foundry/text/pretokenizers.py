"""How byte-level vocabularies split text before merging, by the name in `tokenizer.ggml.pre`.

The names are llama.cpp's. The patterns are those of the models' own tokenizers (their tokenizer.json), because
llama.cpp's regex engine needed other ones. So are the other fields, which that name implies as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CAMEL = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_NO_HAN = _CAMEL.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACE}"
QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_MARKS}|{_SPACE}"
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
MINICPM5 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_MARKS}|{_SPACE}"
JAIS2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]+|" + "|".join(
    [*(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)), r"\s{1,2}(?!\S)", r"\s{1}"]
)
TEKKEN = rf"{_CAMEL % ('', '')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
GPT4O = rf"{_CAMEL % ((_CONTRACTIONS + '?',) * 2)}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
KIMI = rf"[\p{{Han}}]+|{_NO_HAN % ((_CONTRACTIONS + '?',) * 2)}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACE}"
SEED = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}"
TURKISH = rf"{_WORDS}|\p{{N}}|{_MARKS}|{_SPACE}"
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# Letters that have a case, as DeepSeek lists them: fewer than \p{Lu}, \p{Ll} and \p{Lt} hold.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3"
    "ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class Pre:
    """splits: patterns that isolate what they match, one after the other. nfc: text is normalised first.
    whole: a piece that is a token stays one, whatever the merges. bos: added where the file doesn't say."""

    splits: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_DIGITS = Pre((r"\p{N}", GPT2))
_LLAMA3 = Pre((LLAMA3,), whole=True, bos=True)
_TABLE: dict[str, Pre] = {
    "default": Pre(DEFAULT),
    "falcon": Pre(FALCON),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling modern-bert": Pre((GPT2,)),
    "mpt olmo": Pre((GPT2,), nfc=True),
    "smollm starcoder refact codeshell exaone minerva-7b mellum2": _DIGITS,
    "command-r": Pre(_DIGITS.splits, nfc=True),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _LLAMA3,
    "dbrx smaug-bpe glm4 chatglm-bpe": Pre((LLAMA3,)),
    "qwen2": Pre((QWEN2,), nfc=True),
    "stablelm2 deepseek-r1-qwen megrez kormo f2llmv2 hunyuan grok-2 solar-open": Pre((QWEN2,)),
    "qwen35": Pre((QWEN35,), nfc=True),
    "minicpm5": Pre((r"\p{N}{1,3}", MINICPM5), whole=True),
    "jais-2": Pre((JAIS2,)),
    "tekken": Pre((TEKKEN,), whole=True, bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Pre((GPT4O,)),
    "tiny_aya cohere2moe": Pre((r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)),
    "kimi-k2": Pre((KIMI,)),
    "seed-coder": Pre((SEED,)),
    "ufakzeka": Pre((TURKISH,)),
    "bailingmoe bailingmoe2 llada-moe": Pre((BAILING,)),
    "exaone-moe": Pre((EXAONE_MOE,)),
    "bloom poro-chat gpt3-finnish": Pre((BLOOM,)),
    "viking": Pre((BLOOM, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Pre(DEEPSEEK3),
    "deepseek-llm": Pre(DEEPSEEK_LLM),
    "deepseek-coder": Pre(DEEPSEEK_CODER),
}
# The first name of each way, for messages: all names are more than a message holds.
FIRST = sorted(names.split()[0] for names in _TABLE)
PRE: dict[str, Pre] = {name: pre for names, pre in _TABLE.items() for name in names.split()}


def pre_tokenizer(pre: Pre) -> pre_tokenizers.PreTokenizer:
    """The splits, then bytes as the letters that vocabularies spell them with."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.splits]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
