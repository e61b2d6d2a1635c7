"""What the adapters of trainers on `transformers.Trainer` share: TRL's and ms-swift's."""
