from magnetar.deploy.credentials import ClientCredentials


def test_each_side_of_a_command_has_credentials_of_its_own() -> None:
    environment = {
        "MAGNETAR_TOKEN": "both",
        "MAGNETAR_TLS_TRUST": "/ca.pem",
        "MAGNETAR_TO_TOKEN": "target",
        "MAGNETAR_TO_TLS_TRUST": "",
    }
    source = ClientCredentials.of_environment(environment, side="FROM")
    target = ClientCredentials.of_environment(environment, side="TO")
    assert (source.token, source.tls_trust) == ("both", "/ca.pem")
    assert (target.token, target.tls_trust) == ("target", "")
    assert ClientCredentials.of_environment(environment).token == "both"
