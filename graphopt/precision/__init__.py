"""Lower precision: optional, after all other passes.

float16/ converts to half precision, with Casts at the boundary to float32. bfloat16 has the passes that round the
operands of matrix multiplications, and rounded_weight rounds constant weights for them. nchw2c_convolutions and
nchw2c_pools keep tensors between convolutions in the NCHW2c bf16 layout. bfloat16_gain measures whether a machine
is faster in bfloat16. limit_error chooses the layers that keep float32, so that the error is below a limit.
"""
