/**
 * Input: an HTML form with `patient`, `reason` and any number of `copy`. Creates a ServiceRequest, and sends a letter
 * as multipart form data to the address in the secret FAX_URL.
 */
import type { BotEvent, MedplumClient } from '@medplum/core'

interface Form {
  readonly patient: string
  readonly reason: string
  readonly copy?: string | string[]
}

export async function handler(medplum: MedplumClient, event: BotEvent<Form>) {
  const { patient, reason, copy } = event.input
  const request = await medplum.createResource({
    resourceType: 'ServiceRequest',
    status: 'active',
    intent: 'order',
    subject: { reference: `Patient/${patient}` },
    reasonCode: [{ text: reason }],
  })
  const letter = new FormData()
  letter.append('number', request.id)
  letter.append('letter', new Blob([`Reason: ${reason}`], { type: 'text/plain' }), 'letter.txt')
  for (const address of [copy ?? []].flat()) letter.append('copy', address)
  const response = await fetch(event.secrets.FAX_URL?.valueString ?? '', {
    method: 'POST',
    body: letter,
  })
  return { request: request.id, fax: await response.text() }
}
