"""What lets the unmodified stack of the miles-rl wheel run without a GPU; nothing else needs it.

stand_in              what a stand-in is, and how one takes the place of an upstream name
catalog               all of them, in the order in which a process meets them
sgl_kernel            a package in place of SGLang's CUDA kernels, served from memory
pinned_memory         allocations that ask for pinned host memory
loopback              the address that the parts of a run give each other
gloo                  process groups that ask for NCCL, and collectives that gloo takes differently
sglang_weights        SGLang's weight update, weight check and streams
copies                two moves to the host that routing replay needs to be copies
cuda_on_cpu           the torch.cuda of a train actor (cuda_mode is its tensor half)
megatron_local_spec   Megatron's local layer spec, where Miles knows Transformer Engine's only
load_hugging_face     a Hugging Face folder as the trainer's first weights
replay_order          replayed routes in the order of Megatron's padded batches
trainer_start         what a train actor refuses to start with
start_up              a quicker start of the many processes of a run
stock_sglang          what a stock release of SGLang needs besides
prefill_decode        what a prefill or decode server needs besides
wide_expert_parallel  what such a release needs besides for DP attention with expert parallelism

environment           the variables of a CPU run
logical_gpus          a Ray instance on this machine whose GPUs are numbers
tiny_model            a random Qwen3-MoE checkpoint and its tokenizer, the same every time
game                  a multi-turn environment with a calculator, for that model
flags                 the Miles command line for all of this
boot                  the stand-ins registered in a process of a run
free_port             a port of its own for every server
sglang_server         one real server, started and ended under a roll call
sglang_pair           one prefill and one decode server, and what crosses between them
miles_router          one real router process before such servers
megatron_alone        ranks of a lone Megatron under gloo, and the facts they leave
megatron_models       tiny models and what trains them, on every Megatron
megatron_saves        how these write checkpoints and read them
fused_adam            an Adam with the state layout of Transformer Engine's and Apex's
saved_adam            it, as what a trainer is built with
run                   the driver: Ray with logical GPUs around Miles's loop
"""
