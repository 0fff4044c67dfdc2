/** GET with `?patient=<id>`. Answer: the data of a patient's chart, read by one GraphQL query. */
import type { BotEvent, MedplumClient } from '@medplum/core'

const query = `query Chart($id: ID!, $subject: [String!]) {
  Patient(id: $id) { id birthDate name { family given } }
  ConditionList(subject: $subject, _count: 50) { id code { text coding { display } } }
  ImmunizationList(patient: $subject, _count: 50) { id vaccineCode { text } }
}`

interface Chart {
  Patient: { id: string; name: { family: string; given: string[] }[] }
  ConditionList: { code: { text?: string } }[]
  ImmunizationList: { vaccineCode: { text?: string } }[]
}

export async function handler(medplum: MedplumClient, event: BotEvent<{ patient?: string }>) {
  const id = event.input.patient
  if (!id) throw new Error('Which patient?')
  const reply = await medplum.graphql(query, 'Chart', { id, subject: `Patient/${id}` })
  if (reply.errors) throw new Error(reply.errors[0].message)
  const { Patient, ConditionList, ImmunizationList }: Chart = reply.data
  return {
    name: Patient.name[0],
    problems: ConditionList.map(({ code }) => code.text),
    vaccines: ImmunizationList.map(({ vaccineCode }) => vaccineCode.text),
  }
}
