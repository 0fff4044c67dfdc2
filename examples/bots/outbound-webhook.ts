/**
 * Input: any resource. Sends it to the address in the Project's secret HOOK_URL, signed with HOOK_KEY: the receiver
 * computes the same HMAC over the received body.
 */
import { createHmac } from 'node:crypto'
import type { BotEvent, MedplumClient } from '@medplum/core'
import type { Resource } from '@medplum/fhirtypes'

export async function handler(_medplum: MedplumClient, event: BotEvent<Resource>) {
  const url = event.secrets.HOOK_URL?.valueString
  const key = event.secrets.HOOK_KEY?.valueString
  if (!url || !key) throw new Error('The secrets HOOK_URL and HOOK_KEY are needed')
  const body = JSON.stringify(event.input)
  const signature = createHmac('sha256', key).update(body).digest('hex')
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'Content-Type': 'application/fhir+json', 'X-Signature': signature },
    body,
  })
  console.log('sent', event.input.resourceType, event.input.id, 'with', key)
  if (!response.ok) throw new Error(`The receiver answered ${response.status}`)
  return { status: response.status, receipt: await response.json() }
}
