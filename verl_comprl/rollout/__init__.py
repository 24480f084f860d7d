"""Agent loop of an episode, with guidance, critic, tool and the records of failed rollouts."""
