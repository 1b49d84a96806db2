"""Texts that tokenizers are compared on: many scripts, code, numbers, white space, and what keyboards don't have."""

from __future__ import annotations

LANGUAGES = [
    "The quick brown fox didn't jump; it'll sleep, and we've seen that they're lazier than I'd thought.",
    "Der Fuß heißt nicht Füße, und die Straßenbahn fährt um 7:45 Uhr über die Brücke.",
    "L'été s'achève ; où êtes-vous allés, cœur léger ? À Nîmes, peut-être.",
    "El niño pequeño preguntó: ¿cuántos años tiene el pingüino? ¡Muchísimos!",
    "Žluťoučký kůň úpěl ďábelské ódy, zatímco Łódź czekała na źdźbło.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка, объём.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τί ἐστιν ἀρετή;",
    "החתול ישן על הספה, והילדה קוראת סֵפֶר מעניין.",
    "القطة تنام على الأريكة، والطِّفْلُ يَقْرَأُ كتابًا في ٢٠٢٤.",
    "گربه روی مبل خوابیده است و می‌خواهد بماند.",
    "बिल्ली सोफ़े पर सो रही है और क्षत्रिय राजा ने १२३ किताबें पढ़ीं।",
    "বিড়ালটি সোফায় ঘুমাচ্ছে, আর ছেলেটি বই পড়ছে।",
    "பூனை சோபாவில் தூங்குகிறது; ஸ்ரீ கணேஷ் வந்தார்.",
    "แมวนอนหลับอยู่บนโซฟา และเด็กกำลังอ่านหนังสือ ๑๒๓ หน้า",
    "猫在沙发上睡觉，孩子读了三本书。二〇二四年！",
    "貓咪在沙發上睡覺，「讀書」很有趣……",
    "猫はソファで寝ています。カタカナとﾊﾝｶｸ、123円です。",
    "고양이가 소파에서 자고 있어요. 한글과 ㄱㄴㄷ!",
    "Con mèo ngủ trên ghế sô-pha; người Việt đọc sách nhiều lắm.",
    "კატა დივანზე სძინავს, და ბავშვი კითხულობს.",
    "Կատուն քնած է բազմոցի վրա։ Երեխան կարդում է։",
    "ድመቷ ሶፋ ላይ ተኝታለች። ልጁ መጽሐፍ ያነባል።",
    "İstanbul'da ılık bir gün; ığdır'ın çiçekleri ŞÖYLE güzel.",
    "ᐊᓄᕆ ᒪᓕᒃᑐᖅ ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ བོད་ཡིག ខ្មែរ ລາວ မြန်မာ සිංහල",
]

CODE = [
    'def f(x: int = 0x1F) -> "str":\n    """Doc."""\n    return f"{x!r:>10}"  # TODO\n\n\nclass A(B):\n\tpass\n',
    "#include <vector>\nint main() { std::vector<int> v{1,2,3}; for (auto&& x : v) x <<= 2; return !!v[0]; }\r\n",
    "SELECT a.id, COUNT(*) AS n FROM t AS a WHERE a.x >= 1e-5 AND b<>'O''Reilly' GROUP BY 1;\n",
    "<div class='x'>\n  <p>1 &lt; 2 &amp;&amp; 3</p>\n</div><!-- end -->",
    "$ ls -la | grep '^d' && echo \"$HOME/${USER}\" > /dev/null 2>&1",
    '{"key": [1, 2.5e10, null, true], "nested": {"a\\u00e9": "\\n"}}',
    "camelCaseString XMLHttpRequest snake_case_name SCREAMING_CASE kebab-case a1b2c3 IPv4 HTML5",
]

NUMBERS = [
    "0 1 12 123 1234 12345 123456 1234567",
    "3.14159 -2,718.28 1e-9 0xDEADBEEF 1/2 ½ ² ₃ Ⅷ ① ٣ ४ 五 50%",
    "2024-11-21T10:30:00Z",
]

SPACES = [
    "",
    " ",
    "  ",
    "a  b   c    d     e",
    "\n",
    "\n\n\n",
    "a\nb\n\nc\n\n\nd",
    "\r\n\r\n \r\n",
    "\t\tx\t \ty",
    "   leading and trailing   ",
    " x\u00a0y\u2003z\u3000w\u200b\ufeff ",
    "line \n  indented\n      more\n",
]

RARE = [
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇯🇵 ☕️ ♥︎ 1️⃣ 🫠",
    "e\u0301 n\u0303 o\u0302\u0323 a\u0308\u0304 Z\u0351\u036f\u0321 \u1112\u1161\u11ab \u0e01\u0e33",
    "ﬁ ﬀ ŉ ǆ ſ K Å Ω ẞ ᾳ ΐ \u212b \ufb1d",
    "\x00\x01\x7f\x80\x9f\ufffd\ufffe\uffff\ue000\U0010ffff\U000e0041",
    "𝕳𝖊𝖑𝖑𝖔 𐍈𐌰 𓀀 𠜎𠜱 𝟙𝟚 \U0001f9ff",
    "\u202eright to left\u202c \u2066x\u2069 \u00ad soft",
    "''' ’s ‘re “ve” 'S 'RE 'LL don't DON'T ſ's",
    "--- === ... ??? !!! ((( [[[ {{{ ~~~ ``` ^^^ *** ___ ::: ;;; ,,, \\\\\\ ///\n",
    "▁ already ▁▁ there <0x41> <unk>x Ġ Ċ",
]

SPECIAL = [
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] a [/INST] b</s> <s> c</s>",
    "x<|im_end|>y <|im_end|> z<|im_start|><|im_start|>",
    "<|im_start <|im_end|",
    "<tool>call</tool>  <tool> \n</tool>",
]

TEXTS = LANGUAGES + CODE + NUMBERS + SPACES + RARE + SPECIAL
