/**
 * Input: `{ mrn }`. Reads a patient from another server as a SMART Backend Services client: it requests a token with a
 * JWT signed by RS384 with the Project's secret PEER_KEY, a private JWK. PEER_URL is the address of that server and
 * PEER_CLIENT our client id there; PEER_TOKEN_URL is its token endpoint, by default `token` below PEER_URL.
 */
import type { BotEvent, MedplumClient } from '@medplum/core'
import type { Bundle, Patient } from '@medplum/fhirtypes'

const MRN = 'https://example.org/fhir/sid/mrn'
const ALGORITHM = { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-384' }

export async function handler(medplum: MedplumClient, event: BotEvent<{ mrn: string }>) {
  const url = event.secrets.PEER_URL?.valueString ?? ''
  const tokenUrl = event.secrets.PEER_TOKEN_URL?.valueString ?? `${url}token`
  const client = event.secrets.PEER_CLIENT?.valueString ?? 'clinic'
  const jwk = JSON.parse(event.secrets.PEER_KEY?.valueString ?? '{}')
  const form = new URLSearchParams({
    grant_type: 'client_credentials',
    scope: 'system/Patient.rs',
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: await signed(jwk, { iss: client, sub: client, aud: tokenUrl }),
  })
  const granted = await fetch(tokenUrl, { method: 'POST', body: form })
  if (!granted.ok) throw new Error(`The token was refused: ${granted.status}`)
  const { access_token: token } = await granted.json()
  const found = await fetch(`${url}Patient?identifier=${MRN}|${event.input.mrn}`, {
    headers: { Authorization: `Bearer ${token}` },
  })
  const { entry = [] }: Bundle<Patient> = await found.json()
  const patient = entry[0]?.resource
  if (patient === undefined) return { found: false }
  const { id: _id, meta: _meta, ...content } = patient
  const kept = await medplum.upsertResource(content, `identifier=${MRN}|${event.input.mrn}`)
  return { found: true, patient: kept.id }
}

async function signed(jwk: JsonWebKey & { kid?: string }, claims: object): Promise<string> {
  const key = await crypto.subtle.importKey('jwk', jwk, ALGORITHM, false, ['sign'])
  const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
  const exp = Math.floor(Date.now() / 1000) + 300
  const head = encode({ alg: 'RS384', typ: 'JWT', kid: jwk.kid })
  const text = `${head}.${encode({ ...claims, exp, jti: crypto.randomUUID() })}`
  const signature = await crypto.subtle.sign(ALGORITHM, key, new TextEncoder().encode(text))
  return `${text}.${Buffer.from(signature).toString('base64url')}`
}
