"""Texts of the page of an evaluation: captions, headings, explanations; names in braces are filled in."""

from __future__ import annotations

HEADINGS = {
    "watch": "Watch the policy",
    "policy": "How good is the policy, state by state?",
    "relevance": "Which observations matter?",
    "calibration": "Are the values and intervals correct?",
    "maps": "Where is the value uncertain?",
    "maps_with_critic": "Where is the value uncertain, and where is the critic wrong?",
    "off_policy": "Off-policy evaluation",
    "method": "How this page was made",
}

# Described in words for screen readers, by the name of the figure.
ALTERNATIVES = {
    "episode": "Value along the {name} episode",
    "values": "Histogram of the values of visited states",
    "predictions": "Predicted against observed values",
    "importances": "Bars of the importance of each input",
    "reliability": "Reliability diagram: coverage of the intervals at each level",
    "states": "Value of each visited state with its interval",
    "section": "Value along one input with its interval as a band",
    "value": "Map of the value",
    "uncertainty": "Map of the half-width of the interval",
    "gap": "Map of the critic's value minus the model's",
}

CAPTIONS = {
    "episode": "{rank} return of {n} fresh episodes: {total} in {steps}, {end}; seed {seed}. The dashed line is the "
    "discounted return from each step on. V is its mean: where returns are random, single ones vary more than the "
    "interval.",
    "values": "Values of the visited states; orange ticks are start states. "
    "Many states far below the ticks mean that the policy often reaches states from which it does not recover.",
    "predictions": "Predicted against observed values ({observed}) at states of held-out episodes. About 19 of 20 of "
    "the 95 % intervals should reach the diagonal.{critic}",
    "importances": "How much of the value’s variance over visited states is lost when one input is unknown and the "
    "others are known, with 95 % intervals. Shares add up to more than 100 % where inputs act together, and an input "
    "that others tell is not missed. Grey inputs are irrelevant. An input that must matter but does not points to a "
    "problem.{rest}",
    "reliability": "Coverage against the level of the intervals: 80 % intervals should contain 80 % of the values. "
    "Band: sampling error with {n} episodes. Below it intervals are too narrow, above it too wide.",
    "states": "Value of each visited state, with its 95 % interval. Wide intervals belong to states that are visited "
    "rarely, or that are followed by very different returns.{rest}",
    "section": "Value along the most important input, with its 95 % interval as a band and visited states as ticks. "
    "The band should be wider where there are no ticks.{others}",
    "value": "Value along the two most important axes; dots are visited states.{others} Far from the dots the map is "
    "an extrapolation.",
    "uncertainty": "Half-width of the 95 % interval: small at the dots, larger away from them. Large values among many "
    "dots belong to states whose returns vary a lot.",
    "gap": "The critic’s value minus V. Red: the critic is higher; blue: lower. Differences among the dots are "
    "relevant; far from them both extrapolate.",
}
WATCH = (
    "The best, a typical and the worst of {n} fresh episodes, by their return. Space plays and pauses, the arrow keys "
    "step, a click in the plot goes there."
)
RANKS = {"best": "Highest", "typical": "Median", "worst": "Lowest"}
CLIPPED_CRITIC = " Crosses at the edge: the critic is beyond the axis."
OTHER_INPUTS = " The other inputs are as in visited states nearby."

KERNELS = {
    "isotropic": "The kernel has one relevance for all inputs.",
    "ard": "The kernel has a relevance for each input (ARD): how much the value bends within the spread of the input. "
    "It is small where the value is linear.",
}
EFFECTS = "Share of the value’s variance that is lost without each input, and relevance × variance of the input."
COSTS = (
    "What each input is worth. “Without it”: change of the log evidence in nats, and of the squared error at left-out "
    "episodes, in % of the variance of their returns ± two standard errors."
)

# By the number of rollouts from each state; other numbers are repeated rollouts.
GROUND_TRUTH = {
    0: "The environment cannot be continued from a given state, so intervals are compared with single returns, and "
    "include their noise.",
    1: "From each of {n} states one rollout was made; the environment and the policy are deterministic, so its return "
    "is the value.",
}
REPEATED_ROLLOUTS = (
    "From each of {n} states {n_rollouts} rollouts were made; their mean return is compared with the intervals. The "
    "returns are random; the noise that is left in these means is taken out of errors and coverage."
)
HELD_OUT = "All states are from {episodes} that were not used for fitting. {ground_truth}"
SCORES = (
    "RMSE is the root mean squared error, without the noise of the rollouts that it was measured by; bias is the mean "
    "error (positive: values are too high). NLPD scores value and interval together; lower is better."
)

OFF_POLICY = (
    "<p>The values are those of <strong>{target}</strong>; the data were generated by {agent}. At {states}, the two "
    "policies chose different actions at {disagreement}.{mean} The more they differ, the less the data say about the "
    "target policy, and the less reliable the intervals are.</p>"
)

METHOD = (
    "<p>Transitions of the policy were collected, and a Gaussian process was fitted to their rewards (Gaussian process "
    "temporal differences, GPTD). Its relevances maximise the evidence. If the agent has a critic, it serves as a "
    "prior mean where that improves the prediction of left-out episodes. V is the simplest candidate that predicts "
    "them as well as the best: {chosen}. Root mean squared errors at left-out episodes: {candidates}. The intervals "
    "are calibrated by the errors at states of fresh episodes; the coverage is that of half of these states by "
    "intervals that the other half calibrated, both ways. All numbers are in "
    '<a href="evaluation.json">evaluation.json</a>.</p>'
)

GLOSSARY = {
    "value V": "Expected discounted return from a state under the policy.",
    "95 % interval": "A range that contains the true value in 95 of 100 cases. It is about the value, not about single "
    "returns, which vary more.",
    "coverage": "Share of observed values inside the intervals.",
    "relevance": "1 / (length scale)² of an input, times its variance, so that units do not matter. Relevances are "
    "selected by maximising the evidence.",
    "evidence": "Log marginal likelihood: the log of the probability density of the rewards, averaged over the value "
    "functions of the prior. It rewards data fit and penalises complexity.",
    "RMSE": "Root mean squared error, in units of the return.",
    "NLPD": "Mean negative log predictive density of the observed values: low if predictions are close and intervals "
    "match the errors.",
    "Monte Carlo": "Average of the returns of the same transitions, as a baseline.",
}
