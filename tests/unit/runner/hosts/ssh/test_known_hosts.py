"""Which keys a host is known by, in all notations of known_hosts."""

import base64
import hashlib
import hmac

import pytest

from distrun.runner.hosts.ssh.known_hosts import append, fingerprint, lookup, name_of

KEY = b"the key"
BLOB = base64.b64encode(KEY).decode()


def hashed(name):
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("patterns", "name"),
    [
        ("worker", "worker"),
        ("Worker,10.0.0.5", "10.0.0.5"),
        ("worker", "WORKER"),
        ("*.cluster", "a.cluster"),
        ("node?", "node7"),
        ("[worker]:2222", "[worker]:2222"),
        ("[*]:2222", "[worker]:2222"),
        (hashed("worker"), "worker"),
        (hashed("[worker]:2222"), "[worker]:2222"),
    ],
)
def test_a_line_is_for_the_hosts_its_patterns_match(tmp_path, patterns, name):
    file = tmp_path / "known"
    file.write_text(f"# comment\n\n{patterns} ssh-ed25519 {BLOB} someone@somewhere\n")
    (key,) = lookup(name, [str(file)])
    assert (key.type, key.blob, key.where) == ("ssh-ed25519", KEY, f"{file}, line 3")


@pytest.mark.parametrize(
    "line",
    [
        f"other ssh-ed25519 {BLOB}",
        f"*,!worker ssh-ed25519 {BLOB}",
        f"@cert-authority worker ssh-ed25519 {BLOB}",
        "worker ssh-ed25519",
        "worker ssh-ed25519 !",
        "|1|x worker y",
        hashed("other") + f" ssh-ed25519 {BLOB}",
        "[worker]:22 ssh-rsa AAAA",
        "\xff",
    ],
)
def test_other_lines_say_nothing_about_it(tmp_path, line):
    (tmp_path / "known").write_text(line + "\n")
    assert lookup("worker", [str(tmp_path / "known"), "/no/such/file"]) == []


def test_a_revoked_key_is_marked(tmp_path):
    (tmp_path / "known").write_text(f"@revoked * ssh-rsa {BLOB}\n")
    (key,) = lookup("worker", [str(tmp_path / "known")])
    assert key.revoked


def test_a_key_written_down_is_found_again(tmp_path):
    file = tmp_path / ".ssh" / "known"
    append("a", "ssh-ed25519", KEY, str(file))
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    append("b", "ssh-ed25519", KEY, str(file))
    assert [key.blob for key in (*lookup("a", [str(file)]), *lookup("b", [str(file)]))] == [KEY, KEY]


def test_names_and_fingerprints_are_those_of_ssh():
    assert (name_of("a", 22), name_of("a", 2222)) == ("a", "[a]:2222")
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
