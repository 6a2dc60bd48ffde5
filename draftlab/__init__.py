"""draftlab: train, evaluate and debug DFlash drafters by exact replay.

The stages, in the order data flows. Each ends in files that the next one starts from, each is one
command, and each command is a thin shell over the package named beside it:

    probe      draftlab.host       what machines have: memory, GPUs, pythons, servers, models
    reference  draftlab.reference  what the target itself writes: prompts in, token ids out
    capture    draftlab.hidden     one target pass over it: the hidden states that drafters read
    evaluate   draftlab.replay     what a drafter earns, replayed along it; needs no target pass
    compare    draftlab.compare    whose τ is higher on the same texts, and by more than chance
    report     draftlab.report     one HTML page: the numbers, the curves and every token
    train      draftlab.train      the next drafter, with its true held-out τ in the log
    demo       draftlab.demo       all of the above on the bundled pair

Below them: `draftlab.base` (errors, quantities, records, progress), `draftlab.target` (facts and
weights of the large model), `draftlab.drafter` (the small one) and `draftlab.tree` (draft trees).
Importing `draftlab` loads none of these, and only the stages that compute load torch.
"""

__version__ = "0.1.0"
