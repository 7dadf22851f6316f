"""One machine's part of pbox.

system_calls   mount, umount2, openat2
layers         a sandbox's bounded files
cgroups        a control group per sandbox, whatever the version
cgroups_v1     version 1
cgroups_v2     version 2
bundle         what runsc is told to run
runsc          starting it
guest          process 1 inside a sandbox
guest_channel  the pipes to it
sandbox        commands and end
start          how one comes to be
copies         a writable layer, copied while it may change
snapshots      what a sandbox wrote, kept to start others with
pool           sandboxes that are warm before they are asked for
beneath        files of /work, without following a link out of it
trees          the same for whole folders
place          an agent's folder and control group
proof          every limit, proved by running into it
orphans        reaping what sandboxes leave
sweep          what an agent that was killed left behind
undertaker     the process that sweeps when the agent is gone
"""
