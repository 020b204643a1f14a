"""A load generator for fourstep.v1: requests sent by a plan, times taken at the client."""
