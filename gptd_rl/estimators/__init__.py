"""What users hold: GPTD, GPTDQ, OnlineGPTD."""
