"""Numbers for /metrics, read back with Prometheus's own parser, and the alarm."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sgl_ext.speculation import published_costs
from sgl_ext.speculation.break_even_alarm import BreakEvenAlarm
from sgl_ext.speculation.controller import ControllerSettings, SpeculationController
from sgl_ext.speculation.metrics import SpeculationMetrics, exposition
from sgl_ext.speculation.request_option import AUTO


def test_counts_add_up_and_parse() -> None:
    table = published_costs.tp4_tuned()
    controller = SpeculationController(table, ControllerSettings())
    metrics = SpeculationMetrics(table.block)
    ids = ["0", "1"]
    for request_id in ids:
        controller.admit(request_id, AUTO)
        metrics.admit(request_id)
    tokens = 0
    for step in range(400):
        plan = controller.plan_verify(controller.plan_draft(ids))
        accepted = [min(width, 2) if step < 100 else 0 for width in plan.widths]
        controller.observe(plan, accepted)
        metrics.observe(plan, accepted, draft_s=0.002, verify_s=0.03)
        tokens += 2 + sum(accepted)
    text = exposition(metrics.families(), (("tp_rank", "0"),))
    values = {
        (sample.name, *(item for item in sorted(sample.labels.items()) if item[0] != "tp_rank")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values[("sparkctl_spec_tokens_total",)] == tokens
    assert values[("sparkctl_spec_request_steps_total",)] == 800
    assert (
        sum(value for key, value in values.items() if key[0] == "sparkctl_spec_width_request_steps_total")
        == 800
    )
    assert sum(value for key, value in values.items() if key[0] == "sparkctl_spec_steps_total") == 400
    accepted_second = values[("sparkctl_spec_accepted_total", ("position", "2"))]
    assert accepted_second == values[("sparkctl_spec_accepted_total", ("position", "1"))] > 150
    assert values[("sparkctl_spec_accepted_total", ("position", "3"))] == 0
    assert values[("sparkctl_spec_switched_off_total", ("reason", "not_paying"))] >= 2
    assert values[("sparkctl_spec_requests_off",)] == 2
    assert abs(values[("sparkctl_spec_verify_seconds_total",)] - 12) < 0.01
    assert 'tp_rank="0"' in text
    for request_id in ids:
        metrics.finish(request_id)
    assert "sparkctl_spec_requests_off 0" in exposition(metrics.families())
    metrics.observe(plan, accepted)  # under overlap the last step is seen after its requests have ended
    assert "sparkctl_spec_requests_off 0" in exposition(metrics.families())


def test_the_alarm_comes_on_below_break_even_and_stays_until_above() -> None:
    alarm = BreakEvenAlarm()

    def feed(tokens: float, steps: int) -> list[bool]:
        seen = []
        for _ in range(steps):
            alarm.observe(tokens_per_step=tokens, break_even=1.5)
            seen.append(alarm.is_on)
        return seen

    assert not any(feed(1.0, 127))  # too few steps to say
    assert feed(1.0, 1) == [True]
    assert all(feed(1.49, 3000))  # nearly there is not there
    assert not feed(1.6, 2000)[-1]
    assert not any(feed(1.47, 3000))  # within 3 % below: does not flap
    assert feed(1.3, 2000)[-1]
