/**
 * Input: `{ patient }`. Packs the documents of a patient into one ZIP with a list of them. Bundle it before
 * deployment, since it includes a ZIP library.
 */
import { type BotEvent, getReferenceString, type MedplumClient } from '@medplum/core'
import JSZip from 'jszip'

export async function handler(medplum: MedplumClient, event: BotEvent<{ patient: string }>) {
  const query = `subject=Patient/${event.input.patient}&_count=100`
  const documents = await medplum.searchResources('DocumentReference', query)
  const zip = new JSZip()
  const names: string[] = []
  for (const document of documents) {
    for (const [index, { attachment }] of document.content.entries()) {
      if (attachment.url === undefined) continue
      const name = `${document.id}/${attachment.title ?? `${index + 1}`}`
      zip.file(name, await (await medplum.download(attachment.url)).arrayBuffer())
      names.push(name)
    }
  }
  zip.file('list.txt', names.join('\n'))
  const data = await zip.generateAsync({ type: 'uint8array', compression: 'DEFLATE' })
  const binary = await medplum.createBinary({
    data,
    filename: 'documents.zip',
    contentType: 'application/zip',
  })
  return { zip: getReferenceString(binary), files: names.length }
}
