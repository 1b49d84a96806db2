"""What a row of `families.py` or `expert_families.py` can say of a model family."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast

from torch_foundry.core import limits

MODELS = "transformers.models."


def class_key(cls: type) -> str:
    """How a class, or one that stands for it (`swap`), is named in these tables: by module and name, without the prefix
    of transformers' models."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix(MODELS)


@dataclass(frozen=True)
class NormRoles:
    """Names of a decoder layer's norms by what they do; None where the family has none."""

    pre_attn: str | None = None
    post_attn: str | None = None
    pre_ffn: str | None = None
    post_ffn: str | None = None

    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(n for n in (self.pre_attn, self.post_attn, self.pre_ffn, self.post_ffn) if n)


# `post_attention_layernorm` comes before the feed-forward block in Llama, but right after attention in the others.
PRE = NormRoles(pre_attn="input_layernorm", pre_ffn="post_attention_layernorm")
SANDWICH = NormRoles(
    pre_attn="input_layernorm",
    post_attn="post_attention_layernorm",
    pre_ffn="pre_feedforward_layernorm",
    post_ffn="post_feedforward_layernorm",
)
POST = NormRoles(post_attn="post_attention_layernorm", post_ffn="post_feedforward_layernorm")
GLM4 = NormRoles(
    pre_attn="input_layernorm",
    post_attn="post_self_attn_layernorm",
    pre_ffn="post_attention_layernorm",
    post_ffn="post_mlp_layernorm",
)
# those behind the blocks are Identities where they are switched off
PERI = NormRoles("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2")
BEFORE = NormRoles(pre_attn="input_layernorm", pre_ffn="pre_feedforward_layernorm")
BAMBA = NormRoles(pre_attn="input_layernorm", pre_ffn="pre_ff_layernorm")


@dataclass(frozen=True)
class Experts:
    """A block of routed experts: a router with `top_k`, and `experts`, of the class `..Experts`, as `nn.experts` reads
    them. Names of tensors and numbers are paths from the block, as `gate.weight`; "": there is none.
    """

    block: str = "SparseMoeBlock"  # of its class
    router: str = "gate"
    matrix: str = ""  # child of the router that has `weight`; "": it is the router's own
    normalized: bool | None = None  # whether a token's weights add up to 1; None: as gate.norm_topk_prob says
    score: str = "softmax"  # as in ops.moe_choose
    scored_by: str = ""  # what the router calls its score, where routers differ; a softmax is one over the chosen
    correction: str = ""  # what is added to scores for the choice alone
    correct_logits: bool = False  # ... to logits
    # experts are of router.num_group groups, those of a token of router.topk_group; as router.topk_method has it
    grouped: bool = False
    near: str = ""  # score "in_turn", of two experts: half of what ops.moe_choose calls so
    least_sum: float = 0.0  # as in ops.moe_choose; 0: its default
    scale: str = ""  # a factor on a token's weights
    shared: str = ""  # an MLP that all tokens go to, if the block has it
    shared_gate: str = ""  # what weighs it, by a sigmoid
    combined: str = ""  # how the block calls what becomes of both results: their "sum", or the "average"
    latent: tuple[str, ...] = ()  # children that project to what experts see, and back, unless they are Identities
    least: str = ""  # what weights are divided by if their sum is less
    outer: str = ""  # the same as a child of the layer, if it has one; the only block of layers without experts
    suffix: str = "Experts"  # of the class of `experts`
    beside: bool = False  # they lie beside the MLP, with a router and norms of their own, if layer.enable_moe_block

    def rule(self, block: Any) -> dict[str, Any]:
        """Options of `ops.moe_choose`, as the numbers of `block` are now."""
        router = getattr(block, self.router)
        normalize = router.norm_topk_prob if self.normalized is None else self.normalized
        score = getattr(router, self.scored_by) if self.scored_by else self.score
        normalize = normalize or (bool(self.scored_by) and score == "softmax")
        rule = {"k": router.top_k, "normalize": bool(normalize), "score": score}
        rule |= {"correct_logits": True} if self.correct_logits else {}
        method = getattr(router, "topk_method", None)  # of DeepSeek V2
        if self.grouped and method != "greedy":
            rule |= {"groups": router.num_group, "top_groups": router.topk_group}
            if method == "group_limited_greedy":
                rule["group_best"] = 1
        scale = (float(attrgetter(self.scale)(block)) if self.scale else 1.0) * self.share(block)
        rule |= {"scale": scale} if scale != 1 else {}
        rule |= {"near": 2 * float(attrgetter(self.near)(block))} if self.near else {}
        rule |= {"least_sum": self.least_sum} if self.least_sum else {}
        return rule

    def share(self, block: Any) -> float:
        """What is taken of the experts' result, and of the shared one's."""
        return 0.5 if self.shared in block._modules and self.combination(block) == "average" else 1.0

    def combination(self, block: Any) -> str:
        """As of `combined`."""
        return str(getattr(block, self.combined)) if self.combined else "sum"

    def fits(self, rule: dict[str, Any], experts: int) -> bool:
        """Whether `ops.moe_choose` has that rule for so many."""
        k, groups, top_groups = rule["k"] or 0, rule.get("groups", 1), rule.get("top_groups", 1)
        least = min(groups, rule.get("group_best", 2))  # experts of a group
        if not 0 < groups <= limits.MAX_GROUPS or experts % groups or experts // groups < least:
            return False
        most = min(limits.MAX_CHOSEN, min(groups, top_groups) * (experts // groups))
        return experts <= limits.MAX_EXPERTS and 0 < k <= most and (not self.near or k == 2)

    def matrix_of(self, block: Any) -> Any:
        """The module that has the router's `weight`."""
        return block.get_submodule(f"{self.router}.{self.matrix}".rstrip("."))

    def latent_of(self, block: Any) -> list[Any]:
        """The modules; empty if experts see what the router sees."""
        return [m for m in map(block.get_submodule, self.latent) if type(m).__name__ != "Identity"]

    def correction_of(self, block: Any) -> Any:
        """The tensor, [experts]; None: there is none."""
        corrected = self.correction and getattr(block, "use_expert_bias", True)
        return attrgetter(self.correction)(block).flatten() if corrected else None


@dataclass
class SharedKeysOutput(BaseModelOutputWithPast):
    """What Gemma 4's decoders return: these are set only by stock code."""

    shared_kv_states: Any = None
    router_logits: Any = None


@dataclass(frozen=True)
class Decoder:
    """Ids to the last norm: an embedding, layers and that norm; positions are rotary embeddings, or learned ones."""

    suffix: str = "Model"  # of its class
    embedding: str = "embed_tokens"  # name of the embedding
    layers: str = "layers"  # name of the list of layers
    norm: str = "norm"  # name of the last norm
    first_norm: bool = False  # embeddings pass the last norm too
    rotary: str = "rotary_emb"  # name of the rotary embedding; "": heads are not rotated
    positions: str = ""  # name of the embedding of positions, which is added to that of ids; "": there is none
    mask_counts: bool = False  # stock code counts ones of the mask, where it is told no positions
    absent: tuple[str, ...] = ()  # children that are not understood, if there are any
    multiplier: str | None = None  # attribute of the model: a factor on the embeddings
    mup: bool = False  # the root of config.hidden_size is another one, if config.mup_enabled
    unknown_first: bool = False  # ids outside the table of layers' embeddings stand for its first row
    counts: bool = True  # stock code counts positions on from what a cache has read, where it isn't told any
    mrope: bool = False  # positions may be [3, B, L], by time, height and width, or [4, B, L], behind those of the text
    output: type[Any] = BaseModelOutputWithPast

    def factor(self, module: Any) -> float:
        """What the embeddings of `module` are multiplied by, besides their own scale."""
        factor = float(getattr(module, self.multiplier)) if self.multiplier else 1.0
        return factor * module.config.hidden_size**0.5 if self.mup and module.config.mup_enabled else factor


@dataclass(frozen=True)
class Head:
    """`lm_head` on top of a decoder, and what follows: names in the decoder's config, as far as they are set."""

    decoder: str = "model"  # where it is, as of `get_submodule`
    divisor: str | None = None  # logits / that
    factor: str | None = None  # logits * that
    suffix: str = "ForCausalLM"  # of the class of both
    softcap: str | None = None  # tanh(logits / that) * that, behind the factor


@dataclass(frozen=True)
class Architecture:
    """How transformers names the classes of one."""

    name: str  # the model type, which transformers' module is called
    prefix: str = ""  # of its classes; "": the name in camel case

    def key(self, suffix: str) -> str:
        """The `class_key` of the class with that suffix."""
        prefix = self.prefix or "".join(word.capitalize() for word in self.name.split("_"))
        return f"{self.name}.modeling_{self.name}.{prefix}{suffix}"


@dataclass(frozen=True)
class Family(Architecture):
    """A decoder: its layers, and what lies before the first and behind the last one."""

    # classes
    layer: str = "DecoderLayer"  # suffix of the layer's; a family with several has a row for each
    norm_class: str = "RMSNorm"  # suffix of its norms'; "": torch's LayerNorm
    linear_class: str = ""  # suffix of its linear layers'; "": torch's
    # suffix of its embedding's, whose rows are multiplied by a buffer `embed_scale` in the weight's dtype, or pass the
    # norm `embed_norm`; "": torch's
    embedding_class: str = ""

    # the layer
    norms: NormRoles = PRE
    # rounding, as in ops.rms_norm; "plain": as "llama", without a weight; "layer": LayerNorm, "layer1p": of 1 + weight
    norm_kind: str = "llama"
    other_norms: tuple[tuple[str, str], ...] = ()  # suffixes of more classes of norms, and their kinds
    inert: frozenset[str] = frozenset()  # children that do nothing outside of training
    unset: tuple[str, ...] = ()  # names in the config: what they would switch on is not understood
    needed: tuple[str, ...] = ()  # names in the config that have to be set
    masks: tuple[str, ...] = ("attention_mask",)  # what a layer calls those that its mixer is given
    pairs: bool = False  # a layer returns attention's weights too, which are None here
    mixer: str = ""  # suffix under which the mixer of `self_attn` is registered, where its class's own says another
    # what blocks take and give has factors, as config and modules say (`parallel_mixers.py`)
    multipliers: bool = False

    # attention
    # "head": over head_dim, "full": over all heads at once; before RoPE; unless self_attn.use_qk_norm is False
    qk_norm: str = "none"
    head_norms: tuple[str, str] = ("q_norm", "k_norm")  # their names
    v_norm: bool = False  # heads of v pass a norm without a weight; in layers without v_proj, v is k before its norm
    grouped_rows: bool = False  # rows of `query_key_value` are by heads of keys: its queries, itself, its values
    # "config": config.sliding_window in every layer, "types": in those that config.layer_types calls sliding,
    # "attention": self_attn.sliding_window, "local": config.window_size where attention_type is that, unknown to masks
    window: str = "none"
    scale: float = 0.0  # of scores; 0: as self_attn says
    softcap: bool = False  # scores are capped by self_attn.attn_logit_softcapping
    output_gate: bool = False  # q_proj has, behind each head, a gate: attention's result is multiplied by its sigmoid
    gate: str = ""  # another projection, if a layer has it, to gates of attention's result or of its heads ...
    gate_activation: str = "sigmoid"  # ... which pass through that

    # its rotation
    rotate_first: bool = False  # norms over head_dim come after RoPE
    full_rotate: bool = True  # False: layers that see all tokens don't rotate; "types": if config.sliding_window is set
    interleaved: bool = False  # elements 2i and 2i + 1 of a head rotate together, not i and i + half of what rotates
    # if cos and sin aren't as ops take them: "halves": one column for both elements of a pair, "pairs": those of a pair
    # are neighbours, "complex": one table, of cos + i sin of each pair, "backwards": heads rotate by minus their angles
    tables: str = ""
    scaled_queries: bool = False  # by position, as config.rope_parameters says (Llama 4)

    # the feed-forward block
    ffn: str = "mlp"  # its name; "": its layers are the layer's own
    alone: bool = False  # a layer has a mixer or a feed-forward block, both called `ffn`, behind the same norm
    # whether it is added to attention's result without seeing it, or what config calls that; if so, a family whose
    # layers lack `norms.pre_ffn` has one norm for both
    parallel: bool | str = False
    experts: Experts | None = None  # what it is in layers that have experts

    # before the first layer and behind the last one
    decoder: Decoder = Decoder()
    head: Head | None = Head()  # None: it is only the decoder of wrappers


@dataclass(frozen=True)
class Wrapper(Architecture):
    """A decoder that is shown images or hears sounds: `..ForConditionalGeneration` is `lm_head` on `model`, of the
    class `..Model`, which puts their features among the embeddings of ids, and what its decoder makes of these is its
    result.
    """

    decoder: str = "language_model"  # attribute of `model`; of any family
    # ids, by their names in the config, that it embeds as padding, in texts as well; it reads rows of the embedding's
    # weight, if layers take embeddings of their own
    replaced: tuple[str, ...] = ()
    own_from: tuple[str, ...] = ()  # of `model`: ids from the least of these numbers on have embeddings of its towers
    factor: str | None = None  # as in `Head`
    softcap: str | None = None


LATENT = "LatentAttention"  # a mixer (`latent_attention.py`)
PARALLEL = "ParallelMixers"  # attention beside a state space (`parallel_mixers.py`)

# What dense families share with those of experts.
GATED: dict[str, Any] = {"norm_kind": "gemma", "qk_norm": "head", "output_gate": True}  # Qwen from 3-Next on
EXAONE: dict[str, Any] = {"qk_norm": "head", "window": "types", "full_rotate": False}
GRANITE: dict[str, Any] = {
    "decoder": Decoder(multiplier="embedding_multiplier"),
    "head": Head(divisor="logits_scaling"),
}
HUNYUAN: dict[str, Any] = {
    "qk_norm": "head",
    "head_norms": ("query_layernorm", "key_layernorm"),
    "rotate_first": True,
}
LFM2: dict[str, Any] = {
    "norms": NormRoles(pre_attn="operator_norm", pre_ffn="ffn_norm"),
    "qk_norm": "head",
    "head_norms": ("q_layernorm", "k_layernorm"),
    "ffn": "feed_forward",
}
