"""Seeded faults of the ops on mixtures of experts."""

from __future__ import annotations

from typing import Any

import test_moe as few
import test_moe_choice as choice
import test_moe_many as many
import torch
from kit import BF16, F16, F32, Fault, within
from moe_cases import CASES, Case, check_glu, check_many, down_inputs, glu_inputs


def _fault(name: str, old: str, new: str, run: Any, file: str = "", kernel: str = "moe.metal") -> Fault:
    return Fault(f"moe-{name}", kernel, old, new, run, file)


def _many(name: str, old: str, new: str, run: Any = None) -> Fault:
    return _fault(name, old, new, run or (lambda: check_many(down_inputs(Case(tokens=70, inner=65), F32))), "",
                  "moe_many.metal")  # fmt: skip


def _choice(name: str, old: str, new: str, run: Any = None) -> Fault:
    return _fault(name, old, new, run or choice.test_choice_among_equals_and_extremes, "topk_experts.h")


BIASED = Case(tokens=40, hidden=64, inner=70, k=3, format="mxfp4", biased=True), F32


FAULTS = [
    _choice("last-of-equals", "other > order ? e", "other >= order ? e",
            lambda: choice.test_choice(1024, 32, True, BF16)),
    _choice("zeros-differ", "as_type<uint>(v + 0.0f)", "as_type<uint>(v)", choice.test_zeros_of_both_signs_are_equal),
    _choice("nan-is-the-least", "? ~0u : bits & 0x80000000u", "? 1u : bits & 0x80000000u"),
    _choice("negative-order", "? ~bits :", "? bits :"),
    _choice("taken-twice", "      orders[winner] = 0;\n", ""),
    _choice("never-normalized", "args.normalize ? weight / (all + args.least_sum)", "args.normalize ? weight"),
    _choice("mass-of-the-first-32", "+= metal::exp(scores.logit(e) - scores.largest)",
            "+= e < 32 ? metal::exp(scores.logit(e) - scores.largest) : 0.0f",
            lambda: choice.test_choice(33, 3, False, F32)),
    _choice("shared-not-through-the-sigmoid", "sigmoid(shared)", "shared",
            lambda: choice.test_choice(8, 2, True, F32)),
    _choice("weighed-with-its-correction", "scores.score(mine)", "scores.rating(mine)",
            choice.test_a_correction_chooses_and_does_not_weigh),
    _choice("weights-not-scaled", "args.scale * (args.normalize", "(args.normalize",
            choice.test_a_correction_chooses_and_does_not_weigh),
    _choice("nothing-over-nothing", "all + args.least_sum", "all", choice.test_a_correction_chooses_and_does_not_weigh),
    _choice("least-sum-left-out", "all + args.least_sum", "all + 1e-20f",
            lambda: choice.test_rules(choice.RULES[1], True)),
    _choice("softmax-for-sigmoid", "return args.sigmoid ?", "return false ?",
            lambda: choice.test_rules(choice.RULES[0], False)),
    _choice("correction-left-out", "args.has_correction ? float(correction[e])", "false ? float(correction[e])",
            lambda: choice.test_rules(choice.RULES[3], False)),
    _choice("logits-not-corrected", "(args.by_logit ? logit(e)", "(false ? logit(e)",
            lambda: choice.test_rules(choice.RULES[2], False)),
    _choice("not-in-turn", "!args.in_turn) weight", "true) weight", lambda: choice.test_rules(choice.RULES[-1], False)),
    _choice("near-those-taken", "!far && orders[e]", "!far", lambda: choice.test_rules(choice.RULES[-1], True)),
    _choice("near-by-the-chosen-one", "metal::max(metal::abs(own), most)", "most",
            lambda: choice.test_rules(choice.RULES[-1], False)),
    _choice("all-are-near", "> scores.args.near", "> INFINITY", lambda: choice.test_rules(choice.RULES[-2], False)),
    _choice("groups-by-their-best", "group_best > 1 ? second", "group_best > 2 ? second",
            choice.test_groups_are_chosen_by_their_two_best),
    _choice("groups-by-their-two-best", "group_best > 1 ? second", "group_best > 0 ? second",
            choice.test_groups_are_chosen_by_their_best),
    _choice("second-best-forgotten", "metal::max(second, metal::min(best, rating))", "metal::min(best, rating)",
            lambda: choice.test_rules(choice.RULES[4], False)),
    _choice("equal-groups-backwards", "other == own && g < lane", "other == own && g > lane",
            choice.test_groups_are_chosen_by_their_two_best),
    _choice("a-group-too-many", "better < scores.args.top_groups", "better <= scores.args.top_groups",
            choice.test_groups_are_chosen_by_their_two_best),
    _choice("all-groups-open", "(open >> e / each & 1)", "(open > 0)",
            choice.test_groups_are_chosen_by_their_two_best),
    _fault("logits-of-the-other-token", "logits[token * rows + n] = args.has_bias",
           "logits[(token < 2 ? 1 - token : token) * rows + n] = args.has_bias",
           lambda: choice.test_route(3, 60, 264, 4, F16, True)),
    _fault("shared-logit-of-the-next-token", "shared[token * args.shared_stride]", "shared[token]",
           lambda: choice.test_route(3, 60, 264, 4, F16, True)),
    _fault("logits-side-by-side", "ulong(token) * args.logits_stride", "ulong(token) * args.experts",
           lambda: choice.test_route(3, 60, 264, 4, F16, True)),
    _fault("shared-row-as-an-expert", *within("weight + ulong(n) * row_blocks : shared;", "shared", "weight"),
           lambda: choice.test_route(3, 60, 264, 4, F16, True)),
    _fault("expert-of-the-first-choice", "r.ids_stride + pair % r.chosen]", "r.ids_stride]",
           lambda: few.test_glu(*CASES[0])),
    _fault("gate-of-expert-0", *within("Gated && n < outputs ? gate + expert *", "gate +", "gate + 0 *"),
           lambda: few.test_glu(*CASES[0])),
    _fault("up-with-the-distance-of-gate", "r.expert_blocks[1]", "r.expert_blocks[0]", few.test_experts_may_be_strided),
    _fault("row-of-the-next-token", "token = pair / r.chosen;", "token = pair / r.chosen ^ 1;",
           lambda: few.test_glu(Case(tokens=2), F32)),
    _fault("activation-of-up", "gated(args.activation, value, other)", "gated(args.activation, other, value)",
           lambda: few.test_glu(*CASES[0])),
    _fault("no-activation-without-a-gate", ": activate(args.activation, value);", ": value;",
           lambda: few.test_without_a_gate(Case(gated=False, tokens=3), F32)),
    _fault("gate-where-there-is-none", "outputs = Gated ? OUTS / 2 : OUTS;", "outputs = (OUTS + 1) / 2;",
           lambda: few.test_without_a_gate(Case(gated=False, tokens=3), F32)),
    _many("no-activation-of-many", "activate(args.activation, memory[i] + of_expert)", "memory[i] + of_expert",
          lambda: many.test_many(Case(tokens=70, inner=65), F32)),
    _fault("norm-left-out", *within("value = Normed ? normed_product<Q", "= N", "= !N"),
           lambda: few.test_glu(*CASES[0])),
    _fault("last-output-not-stored",
           *within("lane < outputs && n < width) y[pair * width + n] = T(known", "n <", "n + 1 <"),
           lambda: few.test_glu(*CASES[4])),
    _fault("weights-of-the-first-token", "= weights[token * r.weights_stride + j]", "= weights[j]",
           lambda: few.test_down(*CASES[1])),
    _fault("ids-without-a-stride",
           *within("ids[token * r.ids_stride + j]; if (is_expert(r, id)) {", "r.ids_stride", "r.chosen"),
           few.test_ids_and_weights_may_be_columns_of_more),
    _fault("last-expert-dropped", "j < r.chosen; j += beside", "j + 1 < r.chosen; j += beside",
           lambda: few.test_down(*CASES[0])),
    _fault("every-expert-by-every-simdgroup", "j = part >> ctz(share)", "j = 0", few.test_integers_are_exact),
    _fault("inputs-not-shared", "part_of(part, share) * simd_width", "0 * simd_width", few.test_integers_are_exact),
    _fault("residual-scaled", "fma(args.scale, sum, float(residual[at]))", "args.scale * (sum + float(residual[at]))",
           lambda: few.test_down(Case(scale=-0.4, tokens=2), F32)),
    _fault("no-expert-is-the-last", "uint(id) < args.experts", "uint(id) <= args.experts && id > -7",
           lambda: check_glu({**glu_inputs(Case(tokens=2), F32), "gate": torch.ones(7, 24, 256)[:6],
                              "up": torch.ones(7, 24, 256)[:6], "ids": torch.full((2, 2), 6, dtype=torch.int32)})),
    _fault("bias-of-expert-0", *within("float(bias[expert * args.of_expert", "[expert", "[0 * expert"),
           lambda: few.test_glu(*CASES[-2])),
    _fault("bias-of-the-neighbouring-output", "n * args.of_output]) : 0.0f", "n]) : 0.0f",
           lambda: few.test_glu(*CASES[-2])),
    _fault("bias-of-gate-for-up",
           *within("gate_bias, expert, n) : bias_of(args.bias[1], up_bias, expert, n)", "up_bias", "gate_bias"),
           lambda: few.test_glu(*CASES[-2])),
    _fault("bias-without-its-weight", *within("fma(weights[token * r.weights_stride + j], bias_of",
           "weights[token * r.weights_stride + j]", "1.0f"), lambda: few.test_down(*CASES[-2])),
    _fault("bias-of-the-first-choice", "args.bias.given && j < r.chosen", "args.bias.given && j < 1",
           lambda: few.test_down(*CASES[-2])),
    _fault("router-bias-left-out", "? logit + float(bias[n]) : logit", "? logit : logit",
           choice.test_route_with_a_bias),
    _fault("router-bias-of-some-experts", "args.has_bias && n < args.n[0]", "args.has_bias && n < 8",
           choice.test_route_with_a_bias),
    _many("bias-of-expert-0-of-many", "bias[ulong(expert) * args.bias.of_expert", "bias[0",
          lambda: many.test_many(*BIASED)),
    _many("bias-of-the-neighbour", "n * args.bias.of_output]", "n]", lambda: many.test_many(*BIASED)),
    _many("pairs-of-the-first-lanes", "order[place] = int(pair);", "order[place] = int(pair % simd_width);"),
    _many("experts-mixed-up", "place += all[i];", "place += all[i] & ~1u;",
          lambda: many.test_group(70, 33, 4)),
    _many("last-pair-of-a-tile", "m < count && n < args.n)", "m + 1 < count && n < args.n)"),
    _many("matrix-of-expert-0", "weight + ulong(expert)", "weight + 0 * ulong(expert)"),
    _many("row-of-the-first-choice", "x + ulong(pair / args.per_row)", "x + ulong(pair / 2 * 2 / args.per_row)"),
    _many("empty-tiles-not-marked", "i += threads) tiles[i] = 0;", "i += threads) tiles[i] = 1;",
          lambda: many.test_group(9, 100, 8)),
    _many("pairs-in-any-order", "popcount(same & ((1u << lane) - 1))", "popcount(same >> lane) - 1",
          lambda: many.test_group(70, 33, 4)),
    _many("simdgroups-from-the-same-place", "own[expert] = place + 1;", "own[expert] = place;",
          lambda: many.test_group(70, 33, 4)),
    _many("simdgroups-not-summed", "before += count;", "before = count;", lambda: many.test_group(900, 7, 4)),
    _many("combined-without-weights", "fma(weights[token * r.weights_stride + j], float", "fma(1.0f, float"),
    _many("ids-of-no-expert-combined", "if (uint(ids[token * r.ids_stride + j]) < r.experts)", "",
          few.test_ids_of_no_expert_add_nothing),
]  # fmt: skip
