/**
 * Input: `{ token }`, a JWT that a partner has signed by RS256. The partner's public key is the Project's secret
 * PARTNER_KEY, in PEM. A valid, unexpired token for this service creates a Communication.
 */
import { createVerify } from 'node:crypto'
import { type BotEvent, badRequest, type MedplumClient, OperationOutcomeError } from '@medplum/core'

const AUDIENCE = 'https://example.org/clinic'

export async function handler(medplum: MedplumClient, event: BotEvent<{ token: string }>) {
  const claims = verified(event.input.token, event.secrets.PARTNER_KEY?.valueString ?? '')
  if (claims.aud !== AUDIENCE) throw refusal('The token has another audience')
  if (!(claims.exp * 1000 > Date.now())) throw refusal('The token has expired')
  const kept = await medplum.createResource({
    resourceType: 'Communication',
    status: 'completed',
    identifier: [{ system: claims.iss, value: claims.jti }],
    payload: [{ contentString: claims.text }],
  })
  return { communication: kept.id }
}

function verified(token: string, key: string) {
  const [head = '', body = '', signature = ''] = token.split('.')
  const { alg } = JSON.parse(Buffer.from(head, 'base64url').toString())
  if (alg !== 'RS256') throw refusal(`Tokens are signed by RS256, not ${alg}`)
  const isGenuine = createVerify('RSA-SHA256')
    .update(`${head}.${body}`)
    .verify(key, signature, 'base64url')
  if (!isGenuine) throw refusal('The signature is not that of the partner')
  return JSON.parse(Buffer.from(body, 'base64url').toString())
}

function refusal(text: string): OperationOutcomeError {
  return new OperationOutcomeError(badRequest(text))
}
