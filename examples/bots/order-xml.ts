/**
 * Input: an order as XML. Creates a ServiceRequest for the patient with that number; the answer is XML too. Bundle it
 * before deployment, since it includes an XML parser.
 */
import { type BotEvent, createReference, type MedplumClient } from '@medplum/core'
import { Builder, parseStringPromise } from 'xml2js'

const MRN = 'https://example.org/fhir/sid/mrn'
const ORDER = 'https://example.org/fhir/sid/order'

export async function handler(medplum: MedplumClient, event: BotEvent<string>) {
  const { order } = await parseStringPromise(event.input, { explicitArray: false })
  const number = order.$.number
  const patient = await medplum.searchOne('Patient', `identifier=${MRN}|${order.patient.$.mrn}`)
  if (patient === undefined) return answer(number, 'AE', 'There is no such patient')
  const items = [order.item].flat()
  const request = await medplum.createResourceIfNoneExist(
    {
      resourceType: 'ServiceRequest',
      identifier: [{ system: ORDER, value: number }],
      status: 'active',
      intent: 'order',
      priority: order.$.urgent === 'yes' ? 'urgent' : 'routine',
      code: { text: items.map((item) => item._ ?? item).join(', ') },
      subject: createReference(patient),
    },
    `identifier=${ORDER}|${number}`,
  )
  return answer(number, 'AA', `ServiceRequest/${request.id}`)
}

function answer(number: string, code: string, text: string): string {
  const receipt = { receipt: { $: { order: number, code }, _: text } }
  return new Builder({ headless: true }).buildObject(receipt)
}
