/**
 * Input: a Bundle of type message. Stores the resources in its focus; the answer is a message with the outcome.
 * https://hl7.org/fhir/R4/messaging.html
 */
import {
  type BotEvent,
  getReferenceString,
  type MedplumClient,
  normalizeErrorString,
} from '@medplum/core'
import type { Bundle, MessageHeader, Reference } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<Bundle>): Promise<Bundle> {
  const [first, ...rest] = event.input.entry ?? []
  const header = first?.resource
  if (event.input.type !== 'message' || header?.resourceType !== 'MessageHeader') {
    throw new Error('The first resource of a message is its MessageHeader')
  }
  try {
    const named = (header.focus ?? []).map((focus) => focus.reference)
    const stored: Reference[] = []
    for (const { fullUrl, resource } of rest) {
      if (resource === undefined || !named.includes(fullUrl)) continue
      stored.push({ reference: getReferenceString(await medplum.createResource(resource)) })
    }
    return replyTo(header, 'ok', stored)
  } catch (error) {
    console.error('refused', normalizeErrorString(error))
    return replyTo(header, 'fatal-error', [])
  }
}

function replyTo(header: MessageHeader, code: 'ok' | 'fatal-error', focus: Reference[]): Bundle {
  const reply: MessageHeader = {
    resourceType: 'MessageHeader',
    id: crypto.randomUUID(),
    ...(header.eventCoding && { eventCoding: header.eventCoding }),
    source: { endpoint: header.destination?.[0]?.endpoint ?? 'urn:botica' },
    response: { identifier: header.id ?? '', code },
    ...(focus.length > 0 && { focus }),
  }
  return { resourceType: 'Bundle', type: 'message', entry: [{ resource: reply }] }
}
