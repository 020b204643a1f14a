"""What a model's answer says: reasoning, content and tool calls, out of its tokens."""
