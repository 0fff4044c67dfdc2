/** Documents as PDF, made in the isolate: a document of a bot costs that bot's own time and memory. */

const pdfmake = require('pdfmake/build/pdfmake.min.js')
const files = require('pdfmake/build/vfs_fonts.js')

const roboto = {
  normal: 'Roboto-Regular.ttf',
  bold: 'Roboto-Medium.ttf',
  italics: 'Roboto-Italic.ttf',
  bolditalics: 'Roboto-MediumItalic.ttf',
}
/** The names that bots are used to; the font is one. */
const ownFonts = { Avenir: roboto, Helvetica: roboto, Roboto: roboto }

/** The bytes of the PDF; rejects where the document is wrong. */
async function createPdf({ docDefinition, tableLayouts, fonts }) {
  const { Buffer } = require('buffer')
  // As a stream it is made at once, so that what is wrong with it is thrown here.
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
