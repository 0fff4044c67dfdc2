/**
 * A public webhook: a payment provider reports a payment by a form. Rejects a form that is not signed with the secret
 * PAYMENT_KEY; a repeated report changes nothing.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { type BotEvent, badRequest, type MedplumClient, OperationOutcomeError } from '@medplum/core'

const payments = 'https://example.org/fhir/sid/payment'

interface Hook extends BotEvent<Record<string, string>> {
  readonly rawBody: string
}

export async function handler(medplum: MedplumClient, event: Hook) {
  const key = event.secrets.PAYMENT_KEY?.valueString ?? ''
  const expected = createHmac('sha256', key).update(event.rawBody).digest()
  const given = Buffer.from(String(event.headers?.['x-signature'] ?? ''), 'hex')
  if (given.length !== expected.length || !timingSafeEqual(given, expected)) {
    throw new OperationOutcomeError(badRequest('The signature is wrong'))
  }
  const { id, invoice, amount, currency } = event.input
  const notice = await medplum.createResourceIfNoneExist(
    {
      resourceType: 'PaymentNotice',
      identifier: [{ system: payments, value: id ?? '' }],
      status: 'active',
      created: new Date().toISOString().slice(0, 10),
      payment: { display: `Invoice ${invoice}` },
      recipient: { display: 'Practice' },
      amount: { value: Number(amount), currency: currency as 'EUR' },
    },
    `identifier=${payments}|${id}`,
  )
  return { notice: notice.id }
}
