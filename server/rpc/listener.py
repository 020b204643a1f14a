"""One address: a server of its own, the services of its protocol, and what is said of its health.

Knows servicers, security and grpc's server. Does not know when to serve (worker.py). Keeps true:
health names exactly the services that are here, and "" for all of them; no call gets past what its
listener asks for.
"""

from collections.abc import Callable, Iterator, Sequence

import grpc
from fourstep.v1 import (
    control_pb2,
    control_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from server.config import LimitsConfig, ListenerConfig, Problem, host_of
from server.errors import said_of
from server.rpc.auth import Auth, tokens_problems
from server.rpc.control import Control, Drain
from server.rpc.door import Door
from server.rpc.guard import Guard
from server.rpc.inference import Inference
from server.rpc.limits import Metadata, options
from server.rpc.served import Served
from server.rpc.sockets import bind, check_free
from server.rpc.tls import credentials
from server.vllm.servicer import add_vllm

_FOURSTEP = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in ((inference_pb2, "Inference"), (control_pb2, "Control"))
)
# Of a listener whose address is known once it is bound: two may be told to find a port.
Interceptors = Callable[[Callable[[], str]], Sequence[grpc.aio.ServerInterceptor]]
Status = health_pb2.HealthCheckResponse.ServingStatus


class Listener:
    """Bound when it is made, which needs a running event loop; answers from `start` on.
    `interceptors` see every call, those that are refused for want of a token as well. Raises
    ValueError and OSError."""

    def __init__(
        self,
        config: ListenerConfig,
        limits: LimitsConfig,
        served: Served,
        *,
        drain: Drain,
        interceptors: Interceptors,
    ) -> None:
        self.config = config
        around = interceptors(lambda: self.address)
        auth = [] if config.tokens is None else [Auth(config.tokens, config.operators)]
        self._server = grpc.aio.server(
            options=options(limits),
            interceptors=(*around, Metadata(limits), *auth, Door(served), Guard()),
            maximum_concurrent_rpcs=limits.calls,
        )
        # An attribute that the module gets when it is imported.
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.services = self._register(served, limits, drain)
        if config.reflection:
            names = (*self.services, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        secure = None if config.tls is None else credentials(config.tls)
        self.port, self.address = bind(self._server, config.address, secure), config.address
        if not config.address.startswith("unix:"):
            self.address = f"{host_of(config.address)}:{self.port}"  # that was found

    async def start(self) -> None:
        await self._server.start()

    async def say(self, status: Status) -> None:
        for name in ("", *self.services):
            await self._health.set(name, status)

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)

    def _register(self, served: Served, limits: LimitsConfig, drain: Drain) -> tuple[str, ...]:
        """The names of the services."""
        if self.config.protocol == "vllm":
            return (add_vllm(self._server, served, deadline_cap=limits.deadline_s),)
        inference = Inference(served, deadline_cap=limits.deadline_s)
        inference_pb2_grpc.add_InferenceServicer_to_server(inference, self._server)
        control = Control(served, drain=drain)
        control_pb2_grpc.add_ControlServicer_to_server(control, self._server)
        return _FOURSTEP


def problems(listeners: Sequence[ListenerConfig]) -> Iterator[Problem]:
    """What these addresses and files have wrong, as far as can be seen without listening."""
    looks = {"address": _look_at_address, "tls.cert": _look_at_tls, "tokens": _look_at_tokens}
    for i, one in enumerate(listeners):
        for name, look in looks.items():
            try:
                for what in look(one):
                    yield f"listeners[{i}].{name}", what
            except OSError as error:
                yield f"listeners[{i}].{_key_of(error, one) or name}", said_of(error)
            except ValueError as error:
                yield f"listeners[{i}].{name}", str(error)


def _key_of(error: OSError, config: ListenerConfig) -> str | None:
    """The key of TLS whose file it is about."""
    files = {} if config.tls is None else vars(config.tls)
    return next((f"tls.{key}" for key, file in files.items() if str(file) == error.filename), None)


def _look_at_address(config: ListenerConfig) -> Sequence[str]:
    check_free(config.address)
    return ()


def _look_at_tls(config: ListenerConfig) -> Sequence[str]:
    if config.tls is not None:
        credentials(config.tls)
    return ()


def _look_at_tokens(config: ListenerConfig) -> Sequence[str]:
    return () if config.tokens is None else tokens_problems(config.tokens, config.operators)
