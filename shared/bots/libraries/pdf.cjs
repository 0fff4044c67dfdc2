/** PDF creation in the isolate, on the bot's own time and memory. */

const pdfmake = require('pdfmake/build/pdfmake.min.js')
const files = require('pdfmake/build/vfs_fonts.js')

const roboto = {
  normal: 'Roboto-Regular.ttf',
  bold: 'Roboto-Medium.ttf',
  italics: 'Roboto-Italic.ttf',
  bolditalics: 'Roboto-MediumItalic.ttf',
}
const ownFonts = { Avenir: roboto, Helvetica: roboto, Roboto: roboto }

async function createPdf({ docDefinition, tableLayouts, fonts }) {
  const { Buffer } = require('buffer')
  // Synchronous as a stream, so that errors of the document are thrown here.
  const named = { ...ownFonts, ...fonts }
  const stream = pdfmake.createPdf(docDefinition, tableLayouts, named, files).getStream()
  const parts = []
  await new Promise((resolve, reject) => {
    stream.on('data', (part) => parts.push(part))
    stream.on('end', resolve)
    stream.on('error', reject)
    stream.end()
  })
  return Buffer.concat(parts)
}

module.exports = { createPdf }
