"""Settings of a space that programs make by name, and definitions carry."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from streamlease.protocol.errors import InvalidOption


class Settings(BaseModel):
    """One kind of settings: a subclass takes its fields as arguments, and hands them to `_set`.

    A definition that was written by a newer version may have more fields, which are left out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    what: ClassVar[str]
    """Of what the settings are, in messages."""

    def _set(self, **values: object) -> None:
        """Take the fields.

        Raises:
            InvalidOption: one of them is not acceptable.
        """
        try:
            BaseModel.__init__(self, **values)
        except ValidationError as error:
            problem = error.errors()[0]
            where = " ".join([self.what, *map(str, problem["loc"])])
            raise InvalidOption(f"{where}: {problem['msg'].removeprefix('Value error, ')}") from None

    @model_validator(mode="wrap")
    @classmethod
    def _known(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        # pydantic calls an __init__ of one's own with what a definition has, neither more nor less.
        if isinstance(values, dict):
            values = {
                name: values.get(name)
                for name, field in cls.model_fields.items()
                if name in values or field.is_required()
            }
        return validate(values)
