"""Who asks for an answer while there is no place for one is sent away at once.

Knows one Served and the names of methods. Does not know messages: they are not read. Keeps true: a
flood of what cannot be taken costs those who are being answered as little as a call can.
"""

import grpc

from server.rpc.handlers import Continuation, Handler, refusing
from server.rpc.served import Served
from server.rpc.status import ERRORS, status_of

ASKS = "/Generate"


class Door(grpc.aio.ServerInterceptor):
    """To be behind whatever says who is calling."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        if handler_call_details.method.endswith(ASKS):
            try:
                self._served.check_room()
            except ERRORS as error:
                return refusing(*status_of(error))
        return await continuation(handler_call_details)
