"""The training stages: warm_start, pretrain, finetune, and the one loop under them."""
