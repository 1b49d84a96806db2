"""Chat templates in the ways that well-known models write theirs; every one written for these tests."""

from __future__ import annotations

BENIGN = {
    "chatml": """{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}""",
    "chatml with tools": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\nYou may call these:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set at = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string
        and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi = false %}{%- set ns.last = at %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "llama 3": """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls|length != 1 %}{{- raise_exception("One call at a time.") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages if message.role in ["user", "assistant"] %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- else %}{{- " " + message["content"]|trim + eos_token }}{%- endif %}
{%- endfor %}""",
    "strict turns": """{{ bos_token }}{% for message in messages if message['role'] != 'tool' %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) and message['role'] != 'system' %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}""",
    "gemma": """{{ bos_token }}
{%- set first = '' -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set first = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}{%- set turns = messages -%}{%- endif -%}
{%- for message in turns -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}""",
    "phi": """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}
{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}
{% else %}{{ '<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}{%- set system_message = "Today's Date: " + today|default('1 May 2025') + ".\\nYou are a helper." %}
    {%- if tools and documents %}{%- set system_message = system_message + " Use tools and documents." %}
    {%- elif tools %}{%- set system_message = system_message + " Use tools." %}
    {%- elif documents %}{%- set system_message = system_message + " Use documents." %}{%- endif %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents %}{{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}
        {{- 'Document ' + loop.index|string + '\\n' + document['text'] }}{%- if not loop.last %}{{- '\\n\\n' }}{%- endif %}
    {%- endfor %}{{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in rest %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + (message['content'] or '') + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}
        {%- if controls %}{{- ' ' + controls | tojson }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}
{%- endfor %}""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(is_first=false, is_tool=false, output_first=true, system='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = message['content'] %}{%- endif %}{%- endfor %}
{{bos_token}}{{ns.system}}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] %}{%- set ns.is_tool = false -%}
{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}
{{- '<｜Assistant｜><｜tool▁calls▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' }}
{{- (tool['function']['arguments'] | tojson) + '\\n' + '```' }}{%- set ns.is_first = true -%}
{%- else %}{{'\\n' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name']}}{%- endif %}{%- endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] and not message['tool_calls'] %}
{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}
{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<｜tool▁output▁begin｜>' + message['content']}}{%- endif %}
{%- endfor -%}
{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}""",
    "macros": """{%- macro type_of(spec) -%}
    {%- if spec.type == "array" -%}{{ type_of(spec["items"]) + "[]" }}
    {%- elif spec.enum is defined -%}{{ '"' + spec.enum | join('" | "') + '"' }}
    {%- elif spec.type == "object" -%}{ {%- for k, v in (spec.properties or {})|dictsort %}{{ k }}: {{ type_of(v) }}{{ ", " if not loop.last }}{% endfor -%} }
    {%- else -%}{{ spec.type|default("any", true) }}{%- endif -%}
{%- endmacro -%}
{%- macro tool_list(tools, indent=2) %}
{%- for tool in tools %}{% set f = tool.function %}
{{ "// " ~ f.description|default("")|upper }}
type {{ f.name }} = (_: {{ type_of(f.parameters) }}) => any;
{% endfor %}{% endmacro -%}
<|start|>system<|message|>{{ tool_list(tools) if tools else "none" }}<|end|>
{%- for m in messages %}<|start|>{{ {"user": "human", "assistant": "gpt"}.get(m.role, m["role"]|title) }}<|message|>
{{- m.content | replace("\\r\\n", "\\n") | indent(2) }}{% if m.name %} ({{ m.name }}){% endif %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""",
    "generation": """{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}<|assistant|>
{%- generation %}{{ message.content }}{{ eos_token }}{%- endgeneration %}{% else %}<|{{ message.role }}|>{{ message.content }}{% endif %}{% endfor %}""",
    "odds and ends": """{% set names = messages | map(attribute='role') | unique | sort | list -%}
{{ names | join(', ') }}: {{ messages | length }} {{ messages|rejectattr('role', 'in', ['system', 'tool'])|list|length }}
{% set counts = namespace(n=0, text=[]) %}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}
{%- set counts.n = counts.n + 1 %}{% set counts.text = counts.text + [m.content|string|length] %}
{%- if loop.index > 5 %}{% break %}{% endif %}{{ loop.cycle('a', 'b') }}{{ '%-5s|%03d' | format(m.role, loop.index) }}
{%- endfor %} {{ counts.text }} {{ counts.n / 2 }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ counts.text | sum }} {{ counts.text|max }}
{% set block %}  {{ 'x' * 3 }} {{ "-".join(['p', 'q']) }} {% endset %}{{ block | trim | center(20) }}|
{% filter upper %}shout {{ messages[-1].content[:10] }}{% endfilter %} {{ messages[-1].content }} {{ 'A' if messages[0].content else 'B' }}
{{ messages[0].get('missing', 'none') }} {{ '{} and {x:>4}'.format('one', x=2) }} {{ 'a,b'.split(',')[1] }} {{ 3.7|round|int }}
{{ messages[0] | items | list | length }} {{ not false }} {% set sep = joiner(' / ') %}{% for m in messages %}{{ sep() }}{{ m.copy().role }}{% endfor %} {{ 'a\\nb' | indent(width=2, first=true) }} {{ 'a' | center(width=3) }} {{ [1, 2, 3] | batch(linecount=2) | list }} {{ 3 is odd }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ' x '.strip() }} {{ 'xax'.strip('x') }} {{ 'aXbX'.rfind('X') }} {{ 1 < 2 <= 2 }} {{ none is none }} {{ [1, 2] + [3] }} {{ {'k': (1, 2)} }}
{% with y = 3 %}{{ y }}{% endwith %} {{ undefined_thing }} {{ messages[99] }} {{ 'ü'|tojson }} {{ "<&>"|tojson }} {{ '<b>' | e }}
{% call(x) wrap('w') %}[{{ x }}]{% endcall %}{% macro wrap(a) %}{{ caller(a) }}{% endmacro %}""",
}
BENIGN["odds and ends"] = "{% macro wrap(a) %}{{ caller(a) }}{% endmacro %}" + BENIGN["odds and ends"].removesuffix(
    "{% macro wrap(a) %}{{ caller(a) }}{% endmacro %}"
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a <place> & time",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Zürich"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["place"],
            },
        },
    }
]
DOCUMENTS = [{"title": "One", "text": "First."}, {"title": "Two", "text": "Zweites: ü."}]
CHATS = {
    "one": [{"role": "user", "content": "Hello, how are you?"}],
    "turns": [
        {"role": "user", "content": " Hi \r\nthere "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello! 'quoted' \"too\" 👋"},
        {"role": "user", "content": "<b>\nwhy?</b>"},
    ],
    "system": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Zürich 東京"},
        {"role": "assistant", "content": "Yes."},
    ],
    "tools": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2]}}}
            ],
        },
        {"role": "tool", "name": "weather", "content": '{"t": 3.5}'},
        {"role": "assistant", "content": "3.5 °C"},
        {"role": "user", "content": "Thanks"},
    ],
}
