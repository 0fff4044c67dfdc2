/**
 * Fetches orders from the laboratory in the secrets LAB_URL and LAB_TOKEN and stores them as ServiceRequests, matched
 * by number. Input: nothing, or `{ "since": "2026-01-01" }`.
 */
import type { BotEvent, MedplumClient } from '@medplum/core'

const system = 'https://example.org/fhir/sid/lab-order'

interface Order {
  readonly number: string
  readonly test: string
  readonly patient: string
  readonly done: boolean
}

export async function handler(medplum: MedplumClient, event: BotEvent<{ since?: string }>) {
  const address = new URL('orders', event.secrets.LAB_URL?.valueString)
  if (event.input.since) address.searchParams.set('since', event.input.since)
  const response = await fetch(address, {
    headers: { Authorization: `Bearer ${event.secrets.LAB_TOKEN?.valueString}` },
    signal: AbortSignal.timeout(5000),
  })
  if (!response.ok) throw new Error(`The laboratory answered ${response.status}`)
  const orders: Order[] = await response.json()
  const saved = await Promise.all(
    orders.map(({ number, test, patient, done }) =>
      medplum.upsertResource(
        {
          resourceType: 'ServiceRequest',
          identifier: [{ system, value: number }],
          status: done ? 'completed' : 'active',
          intent: 'order',
          code: { text: test },
          subject: { reference: `Patient/${patient}` },
        },
        { identifier: `${system}|${number}` },
      ),
    ),
  )
  return saved.map(({ id, status }) => ({ id, status }))
}
