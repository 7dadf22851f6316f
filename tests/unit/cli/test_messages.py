"""What is said on standard error reaches people as it stands."""

from miles_periodic.cli import messages


def test_brackets_in_a_message_are_text_and_no_markup(capsys):
    messages.error("Put it into its table, such as [kv-preservation], not (x: list[str]).")
    said = capsys.readouterr().err
    assert said == "error Put it into its table, such as [kv-preservation], not (x: list[str]).\n"


def test_nothing_goes_to_standard_output(capsys):
    messages.warning("one")
    messages.roll_call_failed("two")
    assert capsys.readouterr() == ("", "warning one\nroll call failed two\n")
