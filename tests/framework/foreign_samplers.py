"""Samplers in plain PyTorch as other engines might write them, each right, or with one mistake by name."""

import torch


def pick(weights, u):
    """The token at `u` of the cumulative weights; they need not sum to 1."""
    heights = weights.cumsum(0)
    return min(int(torch.searchsorted(heights, u * heights[-1], right=True)), len(heights) - 1)


def residual(target, draft):
    left = (target - draft).clamp(min=0)
    return left / left.sum() if left.any() else target


def chain(case, mistake=""):
    """Speculative sampling along a chain: a coin a token, and one uniform for the last token."""
    *coins, last = case.uniforms
    out = list[int]()
    for index, (token, coin) in enumerate(zip(case.draft_tokens.tolist(), coins, strict=True)):
        target, draft = case.target_probs[index], case.draft_probs[index]
        ratio = target[token] if mistake == "draft ignored" else target[token] / draft[token]
        if not (coin <= ratio if mistake == "coin of zero" else coin < ratio):
            left = target if mistake == "target for residual" else residual(target, draft)
            if mistake == "not renormalised":
                heights = (target - draft).clamp(min=0).cumsum(0)
                return [*out, min(int(torch.searchsorted(heights, last)), len(heights) - 1)]
            return [*out, pick(left, coin if mistake == "noise reused" else last)]
        out.append(token)
    return [*out, pick(case.target_probs[-2 if mistake == "bonus of the wrong row" else -1], last)]


def tree(case, mistake=""):
    """Recursive rejection, siblings drawn without replacement: a coin a drafted token, one for the last."""
    row, out = 0, []
    while True:
        left, law = case.target_probs[row], None
        for index in case.children(row):
            token = int(case.draft_tokens[index])
            law = case.draft_probs[index].clone() if law is None else law
            if mistake == "pruned" and float(law[token]) < 0.3:
                continue  # dropped because its own probability is low
            if case.uniforms[index] * law[token] < left[token]:
                out.append(token)
                row = index + 1
                break
            left = residual(left, law)
            if mistake != "sibling left in":
                law[token] = 0
                law = law / law.sum() if law.any() else law
        else:
            return [*out, pick(left, case.uniforms[-1])]


def vllm(
    draft_token_ids,
    num_draft_tokens,
    max_spec_len,
    cu_num_draft_tokens,
    draft_probs,
    target_probs,
    bonus_token_ids,
    sampling_metadata,
    mistake="",
):
    """The signature of vLLM's rejection sampler; recovered tokens by exponential noise, a draw a row.

    A drafted token of -1 is padding and rejected; a row with a generator draws from that.
    """
    rows, vocab = len(num_draft_tokens), target_probs.shape[-1]
    assert len(sampling_metadata.temperature) == rows
    lengths = torch.tensor(num_draft_tokens)
    starts = torch.as_tensor(cu_num_draft_tokens) - lengths
    if draft_probs is None:
        certain = torch.nn.functional.one_hot(draft_token_ids.clamp(min=0), vocab).to(target_probs)
        draft_probs = certain.masked_fill((draft_token_ids < 0).unsqueeze(1), 0)
    coins, noise = torch.rand(rows, max_spec_len), torch.empty(rows, vocab).exponential_()
    for row, generator in sampling_metadata.generators.items():
        state = generator.get_state()
        coins[row] = torch.rand(max_spec_len, generator=generator)
        if mistake == "seed used twice":
            generator.set_state(state)
        noise[row] = -torch.log1p(-torch.rand(vocab, generator=generator))
    out = torch.full((rows, max_spec_len + 1), -1)
    going = torch.ones(rows, dtype=torch.bool)
    for index in range(max_spec_len):
        live = going & (lengths > index)
        at = (starts + index)[live]
        token = draft_token_ids[at]
        p = target_probs[at, token] / draft_probs[at, token]
        if mistake != "padding judged":
            p = p.masked_fill(token < 0, 0.0)
        coin = coins[live, index]
        if mistake == "noise reused":
            coin = 1 - torch.exp(-noise[live, token])
        accepted = coin < p
        left = (target_probs[at] - draft_probs[at]).clamp(min=0)
        if mistake == "target for residual":
            left = target_probs[at]
        out[live, index] = torch.where(accepted, token, (left / noise[live]).argmax(-1))
        going[live] = accepted
    done = going.nonzero().squeeze(1)
    out[done, lengths[done]] = bonus_token_ids[done, 0].to(out)
    return out


def vllm_runner(
    target_logits,
    draft_logits,
    draft_sampled,
    cu_num_logits,
    pos,
    idx_mapping,
    expanded_idx_mapping,
    expanded_local_pos,
    temperature,
    seed,
    num_speculative_steps,
    *,
    mistake="",
):
    """The signature of the sampler of vLLM's newer runner: chance of a request is its seed and the position.

    A drafted token of -1 ends a row, whose last token is then the target's own.
    """
    rows, vocab = len(idx_mapping), target_logits.shape[-1]
    out, count = torch.full((rows, num_speculative_steps + 1), -1), torch.zeros(rows, dtype=torch.int64)
    for row in range(rows):
        first, end = int(cu_num_logits[row]), int(cu_num_logits[row + 1])
        assert (expanded_idx_mapping[first:end] == row).all()
        assert expanded_local_pos[first:end].tolist() == list(range(end - first))
        for at in range(first, end):
            step = at - first
            place = 0 if mistake == "position of the row" else int(pos[at])
            chance = torch.Generator().manual_seed((int(seed[row]) + 7919 * place) % 2**63)
            coin, noise = torch.rand(1, generator=chance), torch.rand(vocab, generator=chance)
            target = target_logits[at].softmax(-1)
            if temperature[row] == 0:
                target = torch.nn.functional.one_hot(target_logits[at].argmax(), vocab).to(target)
            token = int(draft_sampled[at + 1]) if at + 1 < end else -1
            left = target
            judged = at + 1 < end if mistake == "padding judged" else token >= 0
            if judged:
                draft = torch.nn.functional.one_hot(torch.tensor(token % vocab), vocab).to(target)
                if draft_logits is not None:
                    draft = (
                        draft_logits[row, step] / (temperature[row] if temperature[row] > 0 else 1)
                    ).softmax(-1)
                if coin < target[token] / draft[token]:
                    out[row, step] = token % vocab
                    continue
                left = residual(target, draft)
            out[row, step] = int((left / -torch.log1p(-noise)).argmax())
            count[row] = step + 1
            break
    return out, count


def sglang(
    *,
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    draft_probs,
    threshold_single,
    threshold_acc,
    deterministic,
    mistake="",
):
    """The signature of SGLang's target-only tree sampling: one coin for all siblings of a node."""
    for row in range(len(candidates)):
        node, accepted, last = 0, 0, retrive_index[row, 0]
        accept_index[row, 0] = last
        gone = torch.zeros_like(target_probs[row])
        while True:
            coin, heard = uniform_samples[row, node], 0.0
            child = int(retrive_next_token[row, node])
            while child >= 0:
                token = candidates[row, child]
                p = target_probs[row, node, token]
                heard = p if mistake == "siblings not summed" else heard + p
                if coin < heard / threshold_acc or p >= threshold_single:
                    break
                gone[node, token] = p
                child = int(retrive_next_sibling[row, child])
            if child < 0:
                break
            predicts[last] = token
            accepted += 1
            last = accept_index[row, accepted] = retrive_index[row, child]
            node = child
        accept_token_num[row] = accepted
        left = target_probs[row, node] - (0 if mistake == "target for residual" else gone[node])
        predicts[last] = pick(left.clamp(min=0), uniform_samples_for_final_sampling[row])
