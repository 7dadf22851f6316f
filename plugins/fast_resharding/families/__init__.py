"""Families of models, each a table of names, splits and element types.

table     the language of the tables
decoder   what most families share
llama     Llama
qwen      Qwen2, Qwen3, Qwen3-MoE
deepseek  DeepSeek-V3, Kimi-K2
glm       GLM-4.5 MoE
gpt_oss   gpt-oss
known     which families there are, ours and those of other packages
"""
