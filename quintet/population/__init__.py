"""Population-based training: several policies whose hyperparameters tune themselves."""
