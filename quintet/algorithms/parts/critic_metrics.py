"""Metrics of learners with a policy and a critic of its actions, for their records."""

from quintet.observe.metrics import Metric

CRITIC_METRICS = {
    "loss/critic": Metric("1", "weighted error of the critic"),
    "q/prediction_mean": Metric("reward units", "mean value of the replayed actions"),
    "q/target_mean": Metric("reward units", "mean target of these values"),
    "q/error_abs_mean": Metric("reward units", "mean absolute difference of the two"),
    "optim/actor_grad_norm": Metric("1", "norm of the policy's gradient before clipping"),
    "optim/critic_grad_norm": Metric("1", "norm of the critic's gradient before clipping"),
    "optim/actor_learning_rate": Metric("1", "learning rate of the policy"),
    "optim/critic_learning_rate": Metric("1", "learning rate of the critic"),
}
