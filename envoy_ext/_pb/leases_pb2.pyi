from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RenewRequest(_message.Message):
    __slots__ = ("attempt_id", "operation_id", "token")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    operation_id: str
    token: int
    def __init__(self, attempt_id: _Optional[str] = ..., operation_id: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    def __init__(self, granted: _Optional[bool] = ...) -> None: ...

class StoppedRequest(_message.Message):
    __slots__ = ("attempt_id", "operation_id", "token")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    operation_id: str
    token: int
    def __init__(self, attempt_id: _Optional[str] = ..., operation_id: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class StoppedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
