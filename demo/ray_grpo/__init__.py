"""A small GRPO trainer on Ray and torch: the model for a trainer of your own that is observed.

trainer     the loop: one iteration, its phases, samples, updates and publications
generation  where its batches come from: made on the spot, or beside the training
publishing  new weights on their way to the rollout workers
workers     what runs in the actors: policy, reference, rollout and judge
model       the policy as a function of one flat vector of weights
faults      workers that fail, and confirmations that get lost: for tests
"""
