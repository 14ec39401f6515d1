"""Modality dropout: who does without what, and where it has no place."""

import pytest
import torch

from container.models.build import build_classifier
from container.models.modality_dropout import ModalityDropout
from container.models.record_tokens import PackedTokens
from contracts.errors import ContractError
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config

RECORDS = 20_000


def left_out(p, modalities, *, seed=0):
    torch.manual_seed(seed)
    texts, table = ModalityDropout(p)([torch.ones(RECORDS, 3)] * (modalities - 1), torch.ones(RECORDS, 3))
    return torch.stack([features[:, 0] == 0 for features in (*texts, table)], dim=1)  # [B, M]


@pytest.mark.parametrize(("p", "modalities"), [(0.1, 2), (0.5, 2), (0.3, 3), (0.9, 3)])
def test_each_modality_is_left_out_with_its_probability_and_never_all_of_a_record(p, modalities):
    out = left_out(p, modalities)
    assert not out.all(1).any()
    # Independently, but for the record that would be left with nothing: one of its modalities stays, each as likely.
    expected = p - p**modalities / modalities
    assert out.float().mean(0).tolist() == pytest.approx([expected] * modalities, abs=0.015)


def test_a_modality_is_left_out_whole():
    torch.manual_seed(0)
    (first,), second = ModalityDropout(0.5)([torch.full((50, 4), 2.0)], torch.full((50, 6), 3.0))
    assert {tuple(row) for row in first.tolist()} == {(0.0,) * 4, (2.0,) * 4}
    assert {tuple(row) for row in second.tolist()} == {(0.0,) * 6, (3.0,) * 6}


def test_all_tokens_of_a_text_and_all_fields_of_a_table_are_left_out_together():
    lengths = (3, 1, 5) * 20
    tokens = PackedTokens(lengths, torch.tensor([0, *lengths]).cumsum(0).int())
    torch.manual_seed(0)
    (text,), table = ModalityDropout(0.5)([torch.ones(sum(lengths), 2)], torch.ones(60, 4, 2), [tokens])
    of_texts = [part.mean().item() for part in text.split(lengths)]
    of_tables = table.mean((1, 2)).tolist()
    assert set(zip(of_texts, of_tables)) == {(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)}


def test_the_seed_decides_which_records_lose_a_modality():
    assert torch.equal(left_out(0.4, 2), left_out(0.4, 2))
    assert not torch.equal(left_out(0.4, 2), left_out(0.4, 2, seed=1))


def test_in_evaluation_nothing_is_left_out():
    text, table = torch.randn(5, 3), torch.randn(5, 2)
    (kept,), also_kept = ModalityDropout(0.9).eval()([text], table)
    assert torch.equal(kept, text)
    assert torch.equal(also_kept, table)


@pytest.mark.parametrize("name", ["multimodal_bert", "trimodal_bert", "multimodal_cross_attn", "trimodal_cross_attn"])
def test_a_classifier_leaves_out_in_training_and_not_in_evaluation(tmp_path, name):
    hp = hyperparameters(model_class=name, modality_dropout=0.5, tab_field_list=["x", "y", "z"])
    files = [write_config(tmp_path / field.role, "bert") for field in hp.text_fields]
    model = build_classifier(hp, files, tabular_dim=3, numeric_transform=standard_transform(3))
    batch = packed_batch(*[[[5], [9, 3], [4], [6]]] * len(files), tabular_dim=3)
    batches = [model(batch) for _ in range(8)]
    assert len({tuple(logits.flatten().tolist()) for logits in batches}) > 2
    model.eval()
    assert torch.equal(model(batch), model(batch))


@pytest.mark.parametrize("settings", [{"model_class": "bert"}, {"model_class": "multimodal_bert"}])
def test_with_one_modality_it_is_refused(settings):
    with pytest.raises(ContractError, match=r"modality_dropout: is 0\.2, but the model reads one text"):
        hyperparameters(modality_dropout=0.2, **settings)


def test_two_texts_are_two_modalities():
    hp = hyperparameters(model_class="trimodal_bert", modality_dropout=0.2)
    assert not hp.has_table
