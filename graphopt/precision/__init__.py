"""Lower precision, after all other passes and only when asked for.

float16/: half precision, with Casts where it meets float32. bfloat16: passes that round factors of products, whose
weights rounded_weight rounds; channel_pairs and channel_pair_pools keep tensors between convolutions in the NCHW2c bf16
layout. bfloat16_gain measures whether a machine gains, limit_error which layers keep float32.
"""
