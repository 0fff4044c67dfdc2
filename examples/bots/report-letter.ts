/** Input: a DiagnosticReport. Writes it as a PDF and stores it with a DocumentReference. */
import {
  type BotEvent,
  createReference,
  formatCodeableConcept,
  formatDate,
  formatHumanName,
  formatQuantity,
  type MedplumClient,
} from '@medplum/core'
import type { DiagnosticReport, Observation, Patient, Reference } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<DiagnosticReport>) {
  const report = event.input
  const patient = await medplum.readReference(report.subject as Reference<Patient>)
  const results = await Promise.all(
    (report.result ?? []).map((result) => medplum.readReference(result as Reference<Observation>)),
  )
  const rows = results.map(({ code, valueQuantity, effectiveDateTime }) => [
    formatCodeableConcept(code),
    formatQuantity(valueQuantity),
    formatDate(effectiveDateTime),
  ])
  const name = patient.name?.[0]
  const pdf = await medplum.createPdf({
    filename: `${report.id}.pdf`,
    docDefinition: {
      info: { title: formatCodeableConcept(report.code) },
      content: [
        { text: formatCodeableConcept(report.code), fontSize: 18, bold: true },
        `For ${name ? formatHumanName(name) : 'an unnamed patient'}, born ${formatDate(patient.birthDate)}`,
        { table: { headerRows: 1, body: [['Test', 'Result', 'Date'], ...rows] } },
      ],
    },
  })
  const document = await medplum.createResource({
    resourceType: 'DocumentReference',
    status: 'current',
    type: report.code,
    subject: createReference(patient),
    content: [{ attachment: { contentType: 'application/pdf', url: pdf.url } }],
    context: { related: [createReference(report)] },
  })
  return { document: document.id, rows: rows.length }
}
