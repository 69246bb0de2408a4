"""When is a job over? For model servers whose jobs outlive the response that started them.

`rule.Completion` is what the gateway asks; `polled.Polled` answers it for servers with a status path for each job,
`comfyui.ComfyUi` for ComfyUI; `presets` names those that a configuration file may choose by name. Pure: what to ask
a server goes out as data, what it answered comes in as data. Nothing here waits, connects or knows the time.
"""
