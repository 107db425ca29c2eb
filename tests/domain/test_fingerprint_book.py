"""What a replica is and was: an engine's word holds for its process; its past is not forgotten at once."""

from dataclasses import replace
from itertools import pairwise

from envoy_ext.domain.fingerprint import Difference, Fingerprint
from envoy_ext.domain.fingerprint_book import REREAD_S, FingerprintBook
from envoy_ext.domain.ids import PoolName, ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")
DECLARED = Fingerprint(PoolName("chat"), weights="rev-1")
SILENT = Fingerprint(PoolName("chat"))
Q4 = replace(SILENT, model="m.gguf", quantization="Q4_1")
Q8 = replace(SILENT, model="m.gguf", quantization="Q8_0")


def open_book(declared=DECLARED):
    book = FingerprintBook()
    book.declare(A, declared, 0.0)
    return book


def test_what_the_engine_tells_is_put_over_what_is_declared():
    book = open_book()
    assert book.find(A, 1.0) == DECLARED
    assert book.observe(A, 1, Q4, 2.0) == ()
    assert book.find(A, 2.0) == replace(Q4, weights="rev-1")


def test_a_contradiction_is_returned_once_and_again_when_it_is_another():
    book = open_book()
    other = replace(SILENT, weights="rev-2")
    assert book.observe(A, 1, other, 1.0) == (Difference("weights", "rev-1", "rev-2"),)
    assert book.observe(A, 1, other, 61.0) == ()
    assert book.observe(A, 2, other, 70.0) == ()
    assert [str(one) for one in book.read(A).contradictions] == ["weights: rev-1 and rev-2"]
    assert book.observe(A, 3, replace(SILENT, weights="rev-3"), 80.0) == (
        Difference("weights", "rev-1", "rev-3"),
    )
    assert book.observe(A, 4, DECLARED, 90.0) == ()
    assert book.read(A).contradictions == ()


def test_another_process_tells_anew_and_one_that_cannot_be_read_is_as_declared():
    book = open_book()
    book.observe(A, 1, Q4, 1.0)
    book.observe(A, 2, SILENT, 5.0)
    assert book.find(A, 5.0) == DECLARED


def test_a_page_that_fails_takes_nothing_back_from_the_same_process():
    book = open_book()
    book.observe(A, 1, replace(Q4, adapters=("sql",)), 1.0)
    book.observe(A, 1, replace(SILENT, adapters=()), 61.0)
    assert book.find(A, 61.0) == replace(Q4, weights="rev-1", adapters=())


def test_what_a_replica_was_when_an_attempt_ran_is_known_after_its_restart():
    book = open_book()
    book.observe(A, 1, Q4, 1.0)
    book.observe(A, 2, Q8, 100.0)
    assert book.find(A, 99.0).quantization == "Q4_1"
    assert book.find(A, 100.0).quantization == "Q8_0"
    book.observe(A, 2, Q8, 160.0)
    assert book.find(A, 99.0).quantization == "Q4_1", "a look that changes nothing moves no border"


def test_what_is_learned_of_a_process_was_true_of_it_before_it_was_asked():
    book = open_book()
    book.observe(A, 1, Q4, 10.0)
    assert book.find(A, 1.0).quantization == "Q4_1"
    book.observe(A, 1, replace(SILENT, adapters=("sql",)), 70.0)
    assert book.find(A, 1.0).adapters == ("sql",)


def test_a_running_engine_that_is_given_other_weights_has_a_past():
    book = open_book()
    book.observe(A, 1, replace(SILENT, weights="step-1"), 10.0)
    book.observe(A, 1, replace(SILENT, weights="step-2"), 70.0)
    assert (book.find(A, 69.0).weights, book.find(A, 70.0).weights) == ("step-1", "step-2")


def test_a_replica_that_is_listed_anew_is_as_declared_and_its_past_stays_known():
    book = open_book()
    book.observe(A, 7, Q4, 1.0)
    book.declare(A, DECLARED, 50.0)
    assert book.find(A, 49.0).quantization == "Q4_1"
    assert book.find(A, 50.0) == DECLARED
    assert book.is_due(A, 7, 50.0)


def test_a_late_word_on_a_process_that_is_gone_counts_for_nothing():
    book = open_book()
    book.observe(A, 2, Q8, 10.0)
    book.observe(A, 1, Q4, 11.0)
    assert book.find(A, 11.0).quantization == "Q8_0"


def test_an_engine_is_asked_in_each_incarnation_and_then_once_a_minute():
    book = open_book()
    assert book.is_due(A, 1, 0.0)
    book.observe(A, 1, SILENT, 0.0)
    assert not book.is_due(A, 1, REREAD_S / 2)
    assert book.is_due(A, 1, REREAD_S)
    assert book.is_due(A, 2, 0.1)


def test_a_fleet_that_started_together_is_not_asked_together_again():
    book = FingerprintBook()
    names = [ReplicaId(f"10.0.0.{number}:8000") for number in range(200)]
    for name in names:
        book.declare(name, DECLARED, 0.0)
        book.observe(name, 1, SILENT, 0.0)
    due = [sum(book.is_due(name, 1, at) for name in names) for at in range(30, 61)]
    asked = [later - earlier for earlier, later in pairwise(due)]
    assert (due[0], due[-1], sum(asked)) == (0, 200, 200)
    assert max(asked) < 20


def test_of_a_replica_that_is_not_declared_nothing_is_known_and_nobody_asks():
    book = open_book()
    assert book.observe(B, 1, Q4, 1.0) == ()
    assert (book.find(B, 1.0), book.read(B), book.is_due(B, 1, 1.0)) == (None, None, False)
    book.forget(A)
    assert book.find(A, 1.0) is None
