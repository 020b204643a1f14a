"""What is compiled: model maths, weights, operators, state. Knows no request."""
