"""OpenAI's /v1/audio/transcriptions: what is said in a file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import python_multipart  # noqa: F401  # which FastAPI needs for forms: the command says so if it isn't there
from fastapi import APIRouter, Form, UploadFile
from fastapi import Request as HttpRequest
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict

from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.media import heard
from torch_foundry.serving.protocol import SamplingBody, exchange_of, service_of
from torch_foundry.serving.service import Prompt
from torch_foundry.serving.tool_calls import NO_TOOLS
from torch_foundry.text.media import format_of
from torch_foundry.text.processor import transcript, transcription

router = APIRouter()


class TranscriptionForm(BaseModel):
    """A sound (wav, mp3, flac, ogg). language, prompt: what is known of it, if the model's processor takes them."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile
    model: str
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text"] = "json"
    temperature: float = 0.0


@router.post("/v1/audio/transcriptions", response_model=None)
async def create(form: Annotated[TranscriptionForm, Form(media_type="multipart/form-data")], http: HttpRequest) -> Any:
    """Write down what is said in a sound."""
    service, exchange = service_of(http), exchange_of(http)
    service.check_model(form.model)
    if not service.config.max_sounds:
        raise ApiError(400, "file: this server's model hears no sounds", "file")
    data = await form.file.read()
    told = {name: value for name in ("language", "prompt") if (value := getattr(form, name))}

    def ask() -> Prompt:
        try:
            sound = heard(data, format_of(data), service.processor, service.config.max_seconds)
        except ValueError as fault:
            raise ApiError(400, f"file: {fault}", "file") from fault
        try:
            text = transcription(service.processor, sound, **told)
        except ValueError as fault:
            field = str(fault).partition(":")[0]
            raise ApiError(400, str(fault), field if field in told else None) from fault
        return service.shown(text, [], [sound], NO_TOOLS, "file")

    prompt = await service.encoded(ask, "file: the chat template failed")
    body = SamplingBody(model=form.model, temperature=form.temperature)
    params = body.params(service, service.room(prompt, None))
    tokens: list[int] = []
    text = ""
    async for part in service.answer(exchange, [prompt], [params]):
        tokens += part.update.tokens
        text += "".join(piece.text for piece in part.pieces if piece.kind == "content")
    if hasattr(service.processor, "apply_transcription_request"):  # whose answers have a form of their own
        text = transcript(service.processor, tokens)
    text = text.strip()
    if form.response_format == "text":
        return PlainTextResponse(text)
    usage = {"input_tokens": exchange.usage.prompt, "output_tokens": exchange.usage.new}
    return {"text": text, "usage": {"type": "tokens", **usage, "total_tokens": sum(usage.values())}}
