"""The identity of this machine."""

import uuid

from distrun.host.identity import boot_id


def test_this_boot_of_the_machine_has_an_identity_that_stays():
    assert uuid.UUID(boot_id())
    assert boot_id() == boot_id()
